"""Rules that recur: their occurrences, changes of the clocks, what is refused, and second opinions."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim
from dateutil import rrule, tz
from hypothesis import given, settings, strategies as st

from django_delayq.core.message import Message
from django_delayq.core.occurrences import MOST_SCHEDULE_NAME, check_schedule_name, occurrence_id, occurrence_of
from django_delayq.core.recurrence import (
    MOST_CAUGHT_UP,
    CatchUp,
    Cron,
    Every,
    Overlap,
    RRule,
    Rule,
    check_every,
    latest,
    next_to_put,
    rule_of,
    span,
)
from django_delayq.support.validation import MAX_NAME
from tests.core.clocks import DAY, MINUTE, NAMES, clocks, instant
from tests.scale import scaled

HOUR = timedelta(hours=1)
ROME = "Europe/Rome"  # 2026: from 02:00 to 03:00 on 29 March, from 03:00 to 02:00 on 25 October
SIXTY = ",".join(map(str, range(60)))
RULES: list[Rule] = [
    Cron("*/20 1-4 * * *", zone=ROME),
    Cron("30 2 * * *", zone=ZoneInfo(ROME)),
    Cron("0 9 L * MON#1", zone="America/New_York"),
    Every(minutes=15),
    Every(hours=1, seconds=30),
    Every(days=3, time="02:30", zone=ROME, since=date(2026, 3, 1)),
    Every(weeks=2, weekdays="mon,thu", time="09:00:15", zone="Asia/Kathmandu", since=date(2026, 1, 7)),
    Every(months=1, day=-1, time="18:00", zone=ROME),
    Every(days=1, time="09:00", zone=ROME, calendar=frozenset({date(2026, 12, 25), date(2026, 12, 26)})),
    Every(months=1, business_day=-1, time="18:00", zone=ROME, calendar=frozenset({date(2026, 12, 31)})),
    RRule("FREQ=MONTHLY;BYDAY=-1FR", start=datetime(2026, 1, 30, 2, 30), zone=ROME),
    RRule("FREQ=DAILY;INTERVAL=2", start=datetime(2020, 1, 1, 9), zone=ROME, calendar=frozenset({date(2026, 4, 1)})),
]


def occurrences(rule: Rule, after: datetime) -> Iterator[datetime]:
    while (found := rule.after(after)) is not None:
        yield found
        after = found


def local_times(rule: Rule, after: datetime, count: int, zone: str = ROME) -> list[str]:
    return [f"{each.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M}" for each in islice(occurrences(rule, after), count)]


def test_a_cron_expression_counts_in_its_zone() -> None:
    rule = Cron("0 9 * * 1-5", zone=ROME)
    friday = datetime(2026, 3, 27, 12, tzinfo=UTC)
    assert rule.after(friday) == datetime(2026, 3, 30, 7, tzinfo=UTC)  # Monday, in summer time


@given(
    expression=st.tuples(
        st.sampled_from(["0", "*", "*/7", "5,40", "50-59"]),
        st.sampled_from(["0", "*", "3-5", "23", "8-18/2"]),
        st.sampled_from(["*", "1", "L", "LW", "31", "29", "*/9", "13,L"]),
        st.sampled_from(["*", "2", "JAN,DEC", "*/5"]),
        st.sampled_from(["*", "1-5", "0", "7", "FRI#2", "5L", "MON#5", "*/3"]),
    ).map(" ".join),
    after=st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)),
)
def test_a_cron_expression_has_the_times_that_cronsim_says(expression: str, after: datetime) -> None:
    try:
        rule = Cron(expression, zone="UTC")
    except ValueError:  # the 31st of February
        return
    theirs = [each.replace(tzinfo=UTC) for each in islice(CronSim(expression, after), 5)]
    assert list(islice(occurrences(rule, after.replace(tzinfo=UTC)), 5)) == theirs


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_an_occurrence_is_after_the_instant_never_at_it(rule: Rule) -> None:
    found = list(islice(occurrences(rule, datetime(2026, 3, 28, tzinfo=UTC)), 50))
    assert found == sorted(set(found))
    for before, each in pairwise(found):
        assert rule.after(each - timedelta(microseconds=1)) == each
        assert rule.after(before + (each - before) / 2) == each


def test_a_local_time_that_is_skipped_comes_later_and_once() -> None:
    night = datetime(2026, 3, 29, tzinfo=UTC)
    assert local_times(Cron("30 2 * * *", zone=ROME), night, 2) == ["2026-03-29 03:30", "2026-03-30 02:30"]
    assert local_times(Cron("30 2,3 * * *", zone=ROME), night, 2) == ["2026-03-29 03:30", "2026-03-30 02:30"]
    assert local_times(Cron("0,30 2 * * *", zone=ROME), night, 2) == ["2026-03-29 03:00", "2026-03-29 03:30"]
    in_between = datetime(2026, 3, 29, 1, 15, tzinfo=UTC)  # 03:15: 02:30 has been skipped, and is still to come
    assert local_times(Cron("30 2 * * *", zone=ROME), in_between, 1) == ["2026-03-29 03:30"]


def test_a_later_local_time_may_come_before_one_that_was_skipped() -> None:
    zone = "Australia/Lord_Howe"  # on 4 October 2026 from 02:00 to 02:30
    rule = Cron("10,35 2 * * *", zone=zone)
    found = local_times(rule, datetime(2026, 10, 3, 12, tzinfo=UTC), 3, zone)
    assert found == ["2026-10-04 02:35", "2026-10-04 02:40", "2026-10-05 02:10"]


def test_a_local_time_that_comes_twice_counts_the_first_time() -> None:
    night = datetime(2026, 10, 24, 22, tzinfo=UTC)
    rule = Every(days=1, time="02:30", zone=ROME)
    assert list(islice(occurrences(rule, night), 2)) == [
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        datetime(2026, 10, 26, 1, 30, tzinfo=UTC),
    ]


def test_a_day_that_is_skipped_is_no_second_occurrence() -> None:
    rule = Every(days=1, time="09:00", zone="Pacific/Apia")  # 30 December 2011 was left out there
    found = local_times(rule, datetime(2011, 12, 29, tzinfo=UTC), 3, "Pacific/Apia")
    assert found == ["2011-12-29 09:00", "2011-12-31 09:00", "2012-01-01 09:00"]


def test_an_interval_of_elapsed_time_goes_on_through_a_change_of_the_clocks() -> None:
    found = list(islice(occurrences(Every(minutes=15), datetime(2026, 3, 29, 0, 50, tzinfo=UTC)), 3))
    assert found == [datetime(2026, 3, 29, 1, minute, tzinfo=UTC) for minute in (0, 15, 30)]


def test_weeks_and_days_are_counted_from_since() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    weeks = Every(weeks=2, weekdays="mon,thu", time="09:00", zone=ROME, since=date(2026, 1, 7))
    assert local_times(weeks, now, 4) == [f"2026-01-{day} 09:00" for day in ("08", "19", "22")] + ["2026-02-02 09:00"]
    days = Every(days=3, time="09:00", zone=ROME, since=date(2026, 1, 7))
    assert local_times(days, now, 3) == [f"2026-01-{day} 09:00" for day in ("07", "10", "13")]
    week = Every(weeks=1, time="09:00", zone=ROME, since=date(2026, 1, 7))
    assert local_times(week, now, 2) == [f"2026-01-{day} 09:00" for day in ("07", "14")]


@pytest.mark.parametrize(
    ("day", "days"),
    [(-1, ["01-31", "02-28", "03-31"]), (31, ["01-31", "02-28", "03-31"]), (-31, ["01-01", "02-01", "03-01"])],
)
def test_a_month_that_is_too_short_has_its_last_day(day: int, days: list[str]) -> None:
    rule = Every(months=1, day=day, time="18:00", zone=ROME)
    begin = datetime(2025, 12, 31, 20, tzinfo=UTC)
    assert local_times(rule, begin, 3) == [f"2026-{each} 18:00" for each in days]


def test_a_rule_that_is_over_has_no_next_occurrence() -> None:
    late = datetime(9000, 1, 1, tzinfo=UTC)
    for rule in RULES:
        assert rule.after(late) is None
    for longest in (
        Every(days=36600, time="0:00", zone="UTC"),
        Every(weeks=5200, time="0:00", zone="UTC"),
        Every(months=1200, time="0:00", zone="UTC"),
    ):
        assert len(list(occurrences(longest, datetime(2026, 1, 1, tzinfo=UTC)))) < 71


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_survives_json(rule: Rule) -> None:
    read = rule_of(rule.to_json())
    now = datetime(2026, 3, 28, tzinfo=UTC)
    assert list(islice(occurrences(read, now), 20)) == list(islice(occurrences(rule, now), 20))
    assert read.to_json() == rule.to_json()
    assert str(read) == str(rule)


def test_a_rule_is_told_in_words() -> None:
    assert str(Cron("0 9 * * 1-5", zone=ROME)) == "At 09:00 on Monday through Friday in Europe/Rome"
    assert str(Every(minutes=15)) == "every 15 minutes"
    assert str(Every(hours=1)) == "every hour"
    assert str(Every(hours=1, minutes=30)) == "every 1 hour 30 minutes"
    assert str(RULES[7]) == "every month on the last day at 18:00 in Europe/Rome"


@pytest.mark.parametrize(
    ("day", "words"),
    [
        *((2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (22, "22nd"), (31, "31st")),
        *((-2, "2nd to last"), (-11, "11th to last")),
    ],
)
def test_days_are_numbered_in_words(day: int, words: str) -> None:
    assert (
        str(Every(months=1, day=day, time="09:00", zone=ROME)) == f"every month on the {words} day at 09:00 in {ROME}"
    )


@pytest.mark.parametrize("text", ['{"rrule": "FREQ=DAILY"}', '{"every": {"fortnights": 1}}', "[]", "no json"])
def test_other_text_is_no_rule(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no rule|JSON"):
        rule_of(text)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, "needs one interval"),
        ({"days": 1, "minutes": 5, "time": "09:00", "zone": ROME}, "needs one interval"),
        ({"days": 1}, r"needs the local time=\.\.\."),
        ({"days": 1, "time": "9 o'clock", "zone": ROME}, "is no time of day"),
        ({"days": 1, "time": "09:00", "zone": "Europe/Rom"}, "did you mean 'Europe/Rome'"),
        ({"minutes": 15, "zone": ROME}, "is for days, weeks or months"),
        ({"minutes": -1}, "minutes=-1 is too small"),
        ({"minutes": 1.5}, r"minutes=1\.5 is float; give a whole number"),
        ({"hours": 10**9}, "is too large"),
        ({"days": 1, "time": "09:00", "zone": ROME, "weekdays": "mon"}, "give weeks=1"),
        ({"weeks": 1, "time": "09:00", "zone": ROME, "weekdays": "mo"}, "write days like"),
        ({"weeks": 1, "time": "09:00", "zone": ROME, "day": 1}, "give months=1"),
        ({"months": 1, "time": "09:00", "zone": ROME, "day": 0}, "day=0 is no day"),
        ({"months": 1, "time": "09:00", "zone": ROME, "day": 32}, "day=32 is too large"),
        ({"months": 1, "time": "09:00", "zone": ROME, "since": "2026-01-01"}, "give a date"),
    ],
)
def test_an_interval_that_can_not_be_is_refused_with_words(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        Every(**wrong)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("0 9 * *", "does not have five fields"),
        ("0 9 * * " + "1" * 5000, "is no cron expression"),
        ("0 0 9 * * 1-5", "does not have five fields"),
        ("0 25 * * *", "Bad hour"),
        ("0 0 30 2 *", "Bad day-of-month"),
        (9, "is int; write"),
    ],
)
def test_an_expression_that_can_not_be_is_refused_with_words(wrong: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        Cron(wrong, zone=ROME)


def walked(minutes: set[int], hours: set[int], zone: ZoneInfo, begin: datetime, days: int) -> list[datetime]:
    """Return the instants of local times by looking at each minute of each day: slow, and simple."""
    first = begin.astimezone(zone).date() - timedelta(days=4)
    found = set()
    for number in range((days + 8) * 1440):
        local = datetime(first.year, first.month, first.day) + number * MINUTE
        if local.minute in minutes and local.hour in hours:
            found.add(local.replace(tzinfo=zone).astimezone(UTC))
    return sorted(each for each in found if begin < each <= begin + timedelta(days=days))


@settings(max_examples=scaled(60), deadline=None)
@given(
    name=st.sampled_from(NAMES),
    change=st.integers(0, 10**6),
    hours_before=st.integers(0, 30),
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=6),
    hours=st.sets(st.integers(0, 23), min_size=1, max_size=24),
)
def test_no_occurrence_is_missed_or_doubled_when_the_clocks_change(
    name: str, change: int, hours_before: int, minutes: set[int], hours: set[int]
) -> None:
    changes = clocks(name).changes or (56.0 * 365 * DAY,)
    begin = instant(changes[change % len(changes)]) - timedelta(hours=hours_before)
    rule = Cron(f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * *", zone=name)
    expected = walked(minutes, hours, ZoneInfo(name), begin, 2)
    found = list(islice(occurrences(rule, begin), len(expected)))
    assert found == expected


@settings(max_examples=scaled(100), deadline=None)
@given(
    name=st.sampled_from([ROME, "America/New_York", "Australia/Lord_Howe", "UTC"]),
    unit=st.sampled_from(["days", "weeks"]),
    count=st.integers(1, 9),
    hour=st.integers(0, 23),
    since=st.dates(date(2000, 1, 1), date(2030, 1, 1)),
)
def test_dateutil_says_the_same_of_days_and_weeks(name: str, unit: str, count: int, hour: int, since: date) -> None:
    rule = Every(**{unit: count}, time=f"{hour}:30", zone=name, since=since)  # type: ignore[arg-type]
    start = datetime(since.year, since.month, since.day, hour, 30)
    frequency = rrule.DAILY if unit == "days" else rrule.WEEKLY
    naive = rrule.rrule(frequency, interval=count, dtstart=start, count=60)
    zone = ZoneInfo(name)
    expected = [tz.resolve_imaginary(each.replace(tzinfo=zone)).astimezone(UTC) for each in naive]
    assert list(islice(occurrences(rule, datetime(1990, 1, 1, tzinfo=UTC)), 60)) == expected


# Which occurrence is put next


HOURLY = Every(hours=1)
NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)


def at(text: str) -> datetime:
    return NINE.replace(hour=int(text[:2]), minute=int(text[3:5]))


@pytest.mark.parametrize("catch_up", ["none", "last", "all"])
@pytest.mark.parametrize("overlap", ["allow", "skip", "after"])
def test_what_is_not_due_yet_is_put_as_it_is(catch_up: CatchUp, overlap: Overlap) -> None:
    assert next_to_put(HOURLY, at("11:00"), at("10:30"), at("10:30"), catch_up, overlap) == at("11:00")
    assert next_to_put(HOURLY, None, at("10:30"), at("10:30"), catch_up, overlap) is None


@pytest.mark.parametrize(
    ("catch_up", "overlap", "ended", "put"),
    [
        # At 13:30, when 10:00 is the first that was not put: nothing ran since 9:00, or its run ended at 11:30.
        ("none", "skip", None, "14:00"),
        ("last", "skip", None, "13:00"),
        ("last", "skip", "11:30", "13:00"),  # 12:00 and 13:00 were missed, 10:00 and 11:00 overlapped
        ("last", "skip", "13:00", "14:00"),  # all of them overlapped
        ("none", "after", "13:30", "14:00"),
        ("last", "after", "13:30", "13:00"),
        ("all", "after", "13:30", "10:00"),
        ("all", "allow", None, "10:00"),
        ("last", "allow", None, "13:00"),
    ],
)
def test_the_policies_say_which_of_what_is_over_is_put(
    catch_up: CatchUp, overlap: Overlap, ended: str | None, put: str
) -> None:
    ended_at = ended and at(ended)
    assert next_to_put(HOURLY, at("10:00"), at("13:30"), ended_at or None, catch_up, overlap) == at(put)


def test_what_fell_due_when_the_one_before_ended_is_skipped() -> None:
    assert next_to_put(HOURLY, at("13:00"), at("13:30"), at("13:00"), "last", "skip") == at("14:00")


def test_what_is_just_due_is_not_missed() -> None:
    assert next_to_put(HOURLY, at("10:00"), at("10:00"), None, "none", "skip") == at("10:00")
    assert next_to_put(HOURLY, at("10:00"), at("10:01"), None, "none", "skip") == at("11:00")


def test_only_the_last_thousand_are_caught_up() -> None:
    now = NINE + timedelta(days=365)
    begin = next_to_put(HOURLY, NINE, now, None, "all", "after")
    assert begin is not None
    assert now - begin == (MOST_CAUGHT_UP - 1) * timedelta(hours=1)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("most", [1, 7])
def test_the_latest_are_those_that_all_of_them_end_with(rule: Rule, most: int) -> None:
    first = rule.after(datetime(2026, 3, 1, tzinfo=UTC))
    assert first is not None
    for hours in (0, 1, 30, 24 * 50):
        now = first + timedelta(hours=hours)
        every = [first, *takewhile(now.__ge__, occurrences(rule, first))]
        assert latest(rule, first, now, most) == every[-most:]


@pytest.mark.parametrize("rule", [Every(seconds=1), Every(hours=24)], ids=str)
def test_the_latest_of_a_long_outage_take_little_work(rule: Rule) -> None:
    asked = 0

    class Counted:
        def after(self, instant: datetime) -> datetime | None:
            nonlocal asked
            asked += 1
            return rule.after(instant)

        def to_json(self) -> str:
            return ""

    now = NINE + timedelta(days=3650)
    assert latest(Counted(), NINE, now, 1) == [now if rule.after(now - timedelta(seconds=1)) == now else now - 9 * HOUR]
    assert asked < 100


def test_all_that_were_missed_can_not_be_caught_up_if_what_overlaps_is_skipped() -> None:
    with pytest.raises(ValueError, match='give overlap="after"'):
        check_every(Every(hours=1), "all", "skip")
    with pytest.raises(ValueError, match="catch_up='lats' is unknown: did you mean 'last'"):
        check_every(Every(hours=1), "lats", "skip")  # type: ignore[arg-type]
    check_every(Every(hours=1), "all", "after")
    with pytest.raises(ValueError, match=r"catch_up='none' is that of every=\.\.\., which is missing"):
        check_every(None, "none", "skip")
    with pytest.raises(ValueError, match="overlap='allow' is that of every="):
        check_every(None, "last", "allow")


def test_what_falls_on_a_holiday_is_left_out() -> None:
    closed = {date(2026, 5, 1), date(2026, 5, 4)}
    thursday = datetime(2026, 4, 30, 12, tzinfo=UTC)
    for rule in (
        Every(days=1, time="09:00", zone=ROME, calendar=closed),
        Cron("0 9 * * *", zone=ROME, calendar=closed.__contains__),
        RRule("FREQ=DAILY", start=datetime(2026, 1, 1, 9), zone=ROME, calendar=closed),
    ):
        assert local_times(rule, thursday, 3) == ["2026-05-02 09:00", "2026-05-03 09:00", "2026-05-05 09:00"]


def test_a_calendar_of_holidays_alone_is_refused_with_words() -> None:
    rule = Every(days=1, time="09:00", zone=ROME, calendar=lambda day: True)
    with pytest.raises(ValueError, match="has holidays on all 734 days of the rule from"):
        rule.after(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("business_day", "days"),
    [(1, ["2026-05-05", "2026-06-01"]), (2, ["2026-05-06", "2026-06-02"]), (-1, ["2026-05-29", "2026-06-30"])],
)
def test_a_business_day_of_the_month_is_counted_without_holidays(business_day: int, days: list[str]) -> None:
    closed = {date(2026, 5, 1), date(2026, 5, 4)}  # a Friday and a Monday
    rule = Every(months=1, business_day=business_day, time="09:00", zone=ROME, calendar=closed)
    found = local_times(rule, datetime(2026, 4, 30, 12, tzinfo=UTC), 2)
    assert [each.removesuffix(" 09:00") for each in found] == days


def test_a_month_without_a_business_day_is_left_out() -> None:
    rule = Every(months=1, business_day=1, time="09:00", zone=ROME, calendar=lambda day: day.month == 8)
    for begin in (datetime(2026, 7, 2, tzinfo=UTC), datetime(2026, 8, 15, tzinfo=UTC)):
        assert local_times(rule, begin, 2) == ["2026-09-01 09:00", "2026-10-01 09:00"]


@pytest.mark.parametrize("months", [1, 12, 36])
def test_a_calendar_without_business_days_is_refused_with_words(months: int) -> None:
    rule = Every(months=months, business_day=1, time="09:00", zone=ROME, calendar=lambda day: True)
    with pytest.raises(ValueError, match=r"has no business day in 20\d\d-\d\d"):
        rule.after(datetime(2026, 1, 1, tzinfo=UTC))


def test_a_month_with_few_business_days_has_its_last_or_first() -> None:
    rules = [Every(months=1, business_day=number, time="09:00", zone=ROME) for number in (23, -23)]
    found = [local_times(rule, datetime(2026, 2, 1, 9, tzinfo=UTC), 1) for rule in rules]
    assert found == [["2026-02-27 09:00"], ["2026-02-02 09:00"]]


@given(st.sampled_from(NAMES), st.integers(1, 40), st.sampled_from(["DAILY", "WEEKLY", "MONTHLY"]), st.integers(0, 23))
@settings(max_examples=scaled(100), deadline=None)
def test_an_rrule_has_the_local_times_that_dateutil_says(name: str, interval: int, frequency: str, hour: int) -> None:
    start = datetime(2026, 1, 15, hour, 30)
    expected = rrule.rrulestr(f"FREQ={frequency};INTERVAL={interval};COUNT=12", dtstart=start)
    zone = ZoneInfo(name)
    rule = RRule(f"FREQ={frequency};INTERVAL={interval};COUNT=12", start=start, zone=name)
    before = start.replace(tzinfo=zone) - timedelta(seconds=1)
    assert list(occurrences(rule, before)) == sorted({each.replace(tzinfo=zone).astimezone(UTC) for each in expected})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("FREQ=MINUTELY", "FREQ=MINUTELY; give one of YEARLY, MONTHLY, WEEKLY, DAILY"),
        ("FREQ=SOMETIMES", "has FREQ=SOMETIMES"),
        ("FREQ=DAILY;UNTIL=20270101T000000Z", r"its UNTIL is in UTC.*with UNTIL as a local time"),
        ("FREQ=DAILY;BYDAY=XX", "is no rule of RFC 5545"),
        ("FREQ=DAILY;COUNT=0", "it never comes, with COUNT=0"),
        ("FREQ=DAILY;UNTIL=20200101T000000", "it never comes, because its UNTIL is before its start=2026-"),
        ("every day", "it has no FREQ"),
        ("BYDAY=MO", "it has no FREQ"),
        ("RRULE:FREQ=DAILY\nEXDATE:20260101T090000", "a set of rules; give one"),
        ("", "is no rule of RFC 5545"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL=0; give 1 to 36600"),
        ("FREQ=DAILY;INTERVAL=36601", "INTERVAL=36601; give 1 to 36600"),
        ("FREQ=DAILY;BYMONTHDAY=99", "it never comes in 12 years"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "it never comes"),
        ("DTSTART:20200101T100000\nRRULE:FREQ=DAILY", "it has a DTSTART"),
        (f"FREQ=DAILY;BYMINUTE={SIXTY};BYSECOND={SIXTY}", "it comes 3600 times a day, and may come 1440 times"),
    ],
)
def test_text_that_is_no_rrule_is_refused_with_words(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        RRule(text, start=datetime(2026, 1, 1, 9), zone=ROME)


@pytest.mark.parametrize(
    ("text", "start", "comes"),
    [
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", datetime(2024, 2, 29, 9), True),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", datetime(1896, 3, 1, 9), True),  # 1900 has none
        ("FREQ=YEARLY;BYDAY=MO;BYMONTHDAY=29;BYMONTH=2", datetime(2024, 3, 1, 9), False),  # in 2044
        ("FREQ=YEARLY;BYDAY=MO;BYMONTHDAY=29;BYMONTH=2", datetime(2035, 1, 1, 9), True),
        ("FREQ=YEARLY;INTERVAL=13", datetime(2390, 1, 1, 9), True),
        ("FREQ=YEARLY;INTERVAL=13;BYMONTH=2;BYMONTHDAY=29", datetime(2399, 1, 1, 9), False),
        ("FREQ=MONTHLY;BYMONTHDAY=31;UNTIL=20260330T235959", datetime(2026, 2, 1, 9), False),
        ("FREQ=MONTHLY;BYMONTHDAY=31;UNTIL=20260331T235959", datetime(2026, 2, 1, 9), True),
    ],
)
def test_an_rrule_must_come_within_twelve_years_of_its_start(text: str, start: datetime, comes: bool) -> None:
    if comes:
        RRule(text, start=start, zone=ROME)
    else:
        with pytest.raises(ValueError, match="it never comes in 12 years"):
            RRule(text, start=start, zone=ROME)


def test_what_an_rrule_missed_in_a_month_is_counted_from_its_start_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, begin = [], rrule.rrule._iter
    monkeypatch.setattr(rrule.rrule, "_iter", lambda self: begun.append(self) or begin(self))  # type: ignore[func-returns-value]
    rule = RRule("FREQ=MONTHLY;BYDAY=MO;BYHOUR=8,9,10,11,12,13,14,15,16,17,18", start=datetime(1990, 1, 1), zone=ROME)
    begun.clear()
    assert len(list(span(rule, datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 31, tzinfo=UTC)))) == 55
    assert len(begun) == 1


def test_an_rrule_needs_a_local_start() -> None:
    with pytest.raises(ValueError, match="give a datetime without a time zone"):
        RRule("FREQ=DAILY", start=datetime(2026, 1, 1, 9, tzinfo=UTC), zone=ROME)


INSTANTS = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


@given(st.text(min_size=1), INSTANTS, st.none() | st.sampled_from(sorted(available_timezones())))
def test_the_id_of_an_occurrence_tells_its_schedule_and_its_time(name: str, at: datetime, zone: str | None) -> None:
    at = at.replace(microsecond=0)
    assert occurrence_of(occurrence_id(name, at, zone)) == (name, at)


def test_the_id_of_an_occurrence_has_its_local_time_which_is_the_first_of_two() -> None:
    first, second = datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert occurrence_id("s", first, ROME) == "s@2026-10-25T02:30:00[Europe/Rome]"
    assert occurrence_id("s", second, ROME) == "s@2026-10-25T01:30:00Z"
    assert occurrence_id("s", first, None) == "s@2026-10-25T00:30:00Z"


def test_an_id_has_room_for_the_longest_zone() -> None:
    name = check_schedule_name("s" * MOST_SCHEDULE_NAME, "name")
    longest = max(available_timezones(), key=len)
    assert len(occurrence_id(name, datetime(2026, 1, 1, tzinfo=UTC), longest)) <= MAX_NAME
    with pytest.raises(ValueError, match="has 147 characters; give a schedule at most 146"):
        check_schedule_name(f"{name}s", "name")


@pytest.mark.parametrize(
    "id",
    [
        *("s", "s@Z", "@2026-01-01T00:00:00Z", "s@2026-02-30T00:00:00Z", "s@2026-01-01T00:00:00"),
        *(f"s@2026-01-01T00:00:00[{zone}]" for zone in ("", "Europe", "Europe/Rom", "../passwd", "/etc/passwd", "é")),
    ],
)
def test_another_id_is_of_no_occurrence(id: str) -> None:
    assert occurrence_of(id) is None


def test_a_message_knows_which_occurrence_it_is() -> None:
    at = datetime(2026, 3, 30, 7, tzinfo=UTC)
    messages = [Message(id, "k", None, 0, 0, 0) for id in (occurrence_id("report", at, ROME), "report")]
    assert [message.occurrence for message in messages] == [at, None]


def test_a_span_has_what_lies_in_it() -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    assert list(span(Every(hours=1), begin, begin + 2 * HOUR)) == [begin + HOUR, begin + 2 * HOUR]


def test_a_yearly_day_that_is_always_a_holiday_is_refused_in_the_end() -> None:
    rule = Cron("0 9 25 12 *", zone=ROME, calendar=lambda day: (day.month, day.day) == (12, 25))
    with pytest.raises(ValueError, match="has holidays on all 50 days of the rule"):
        rule.after(datetime(2026, 1, 1, tzinfo=UTC))


def test_a_calendar_that_fails_is_named() -> None:
    rule = Every(days=1, time="09:00", zone=ROME, calendar=lambda day: 1 / 0 > 0)
    with pytest.raises(ValueError, match="calendar=<lambda> fails for 2026-01-01: ZeroDivisionError: division by zero"):
        rule.after(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=DAILY;INTERVAL=3",
        "FREQ=DAILY;BYDAY=MO,TU;BYHOUR=9,17",
        "FREQ=DAILY;INTERVAL=2;COUNT=2000",
        "FREQ=DAILY;UNTIL=20290101T000000",
        "FREQ=WEEKLY;INTERVAL=2",
        "FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=SU,MO,TH",
        "FREQ=WEEKLY;INTERVAL=3;BYDAY=TU,SA;BYSETPOS=1",
        "FREQ=MONTHLY;INTERVAL=5;BYDAY=2TU",
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29",
    ],
)
@given(days=st.integers(0, 4_000), minutes=st.integers(0, 1_439))
@settings(max_examples=scaled(30), deadline=None)
def test_an_rrule_that_is_old_goes_on_as_dateutil_counts_it_from_its_start(text: str, days: int, minutes: int) -> None:
    start = datetime(2020, 1, 1, 9, 30)
    after = start + timedelta(days=days, minutes=minutes)
    expected = rrule.rrulestr(text, dtstart=start).after(after)
    found = RRule(text, start=start, zone="UTC").after(after.replace(tzinfo=UTC))
    assert found == (expected and expected.replace(tzinfo=UTC))
