"""Local times, windows and business days as instants: a table of cases, what is refused, and a second opinion."""

import copy
import csv
import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings, strategies as st

from django_delayq import At, Window
from django_delayq.core.human_time import MOST_CLOSED_DAYS, due_in_window_ms, spread_of
from tests.core.clocks import DAY, EPOCH, MINUTE, NAMES, clocks
from tests.core.human_time_sweep import compare_at, compare_windows
from tests.scale import scaled

ROOT = Path(__file__).parent.parent.parent
CASES = json.loads((ROOT / "tests/human_time_cases.json").read_text())
NOON = datetime(2026, 3, 26, 12, tzinfo=UTC)  # a Thursday
OFFICE = Window("mon-fri", "09:00", "18:00", zone="UTC")


def cases(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(CASES[kind][0], [pytest.param(*case[:-1], id=case[-1]) for case in CASES[kind][1:]])


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def dates(texts: list[str] | None) -> list[date] | None:
    return None if texts is None else [date.fromisoformat(text) for text in texts]


@cases("local")
def test_a_local_time_is_an_instant(zone: str, local: str, instant: str) -> None:
    day, _, at = local.partition(" ")
    before = datetime.fromisoformat(day).replace(tzinfo=UTC) - 2 * DAY * MINUTE
    days = (date.fromisoformat(day) - before.astimezone(ZoneInfo(zone)).date()).days
    assert At(days=days, time=at, zone=zone).resolve(before) == utc(instant)


@cases("quiet")
def test_quiet_hours_are_waited_out(zone: str, local: str, start: str, end: str, instant: str) -> None:
    awake = Window("mon-sun", end, start, zone=zone)
    assert awake.resolve(datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone))) == utc(instant)


@cases("at")
def test_days_are_counted_from_now(now: str, rule: dict[str, Any], instant: str) -> None:
    at = At(**(rule | {"calendar": dates(rule.get("calendar"))}))
    assert at.resolve(utc(now)) == utc(instant)


@cases("window")
def test_a_window_is_waited_for(now: str, rule: list[Any], instant: str) -> None:
    *hours, zone, holidays = rule
    assert Window(*hours, zone=zone, calendar=dates(holidays)).resolve(utc(now)) == utc(instant)


def departures(name: str) -> Iterator[datetime]:
    path = ROOT / "example_project/data" / name
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for row in csv.DictReader(file):
            yield datetime.fromisoformat(row["scheduled_departure_local"])


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "Asia/Tokyo"])
@pytest.mark.parametrize("name", ["departures_2013-11-03.csv", "departures_2013-01.csv.gz"])
def test_real_departures_are_at_the_instants_at_which_they_always_were(name: str, zone: str) -> None:
    found = 0
    for local in departures(name):
        midnight = local.replace(hour=0, minute=0, tzinfo=ZoneInfo(zone))
        instant = local.replace(tzinfo=ZoneInfo(zone), fold=0).astimezone(UTC)
        assert At(time=local.time(), zone=zone).resolve(midnight) == instant
        found += 1
    assert found in (902, 27_004)


# The second opinion of clocks.py. human_time_sweep.py asks it at every change of every zone's clocks.


@settings(max_examples=scaled(200), deadline=None)
@given(zone=st.sampled_from(NAMES), year=st.integers(1970, 2100), seed=st.integers(0, 2**32))
@example(zone="Africa/Bissau", year=1975, seed=91)  # its clocks changed in the first hours of the year
def test_a_walk_minute_by_minute_and_dateutil_agree(zone: str, year: int, seed: int) -> None:
    choose = random.Random(seed)
    that_year, around = clocks(zone, year, year), clocks(zone, year - 1, year + 1)
    counts: Counter[str] = Counter()
    for change in that_year.changes or (that_year.starts[0] + 180 * DAY,):
        now = change + choose.randrange(-3 * DAY, 120)
        assert compare_windows(around, change, now, choose, counts) == []
        assert compare_at(around, change, now, choose, counts) == []
    assert counts["early"] == counts["outside"] == 0


def test_a_window_and_a_time_in_it_agree_to_the_microsecond() -> None:
    now = datetime(2026, 3, 26, 17, 59, 59, 999_999, UTC)
    assert OFFICE.resolve(now) == now
    assert At(time="18:00", zone="UTC").resolve(now) == datetime(2026, 3, 26, 18, tzinfo=UTC)


# Spread


def spread_over(window: Any, spread: str, now: str, count: int = 1_000) -> list[datetime]:
    now_ms, spread_ms = int((utc(now) - EPOCH) / MINUTE * 60_000), int(spread) * 60_000
    return [EPOCH + due_in_window_ms(now_ms, window, spread_ms, str(n)) / 60_000 * MINUTE for n in range(count)]


def test_a_spread_is_even_and_the_same_for_an_id() -> None:
    found = [spread_of(f"order:{n}:remind", 1_000) for n in range(10_000)]
    assert found == [spread_of(f"order:{n}:remind", 1_000) for n in range(10_000)]
    assert (min(found), max(found)) == (0, 999)
    tenths = Counter(part // 100 for part in found)
    assert max(abs(count - 1_000) for count in tenths.values()) < 150  # five standard deviations
    assert spread_of("ünï", 2**40) == spread_of("ünï", 2**40) < 2**40
    assert spread_of("a", 0) == 0


def test_a_spread_never_changes_from_one_version_to_the_next() -> None:
    assert [spread_of(id, 3_600_000) for id in ("a", "order:7")] == [2_848_947, 307_629]


def test_a_spread_begins_where_the_window_opens_and_ends_where_it_closes() -> None:
    found = spread_over(OFFICE, "30", "2026-03-26 06:00")
    assert utc("2026-03-26 09:00") <= min(found) < utc("2026-03-26 09:01")
    assert utc("2026-03-26 09:29") < max(found) < utc("2026-03-26 09:30")
    found = spread_over(OFFICE, "30", "2026-03-26 17:50")
    assert utc("2026-03-26 17:50") <= min(found) < utc("2026-03-26 17:51")
    assert utc("2026-03-26 17:59") < max(found) < utc("2026-03-26 18:00")


def test_a_spread_goes_on_where_the_next_window_begins() -> None:
    evening = Window("mon-fri", "18:00", "18:10", zone="UTC")
    for windows in ([OFFICE, evening], (evening, OFFICE)):
        assert utc("2026-03-26 18:09") < max(spread_over(windows, "30", "2026-03-26 17:50")) < utc("2026-03-26 18:10")
    always = Window("mon-sun", "00:00", "24:00", zone="UTC")
    assert utc("2026-03-28 00:20") < max(spread_over(always, "180", "2026-03-27 23:00"))


def test_a_spread_without_a_window_is_all_of_it() -> None:
    found = spread_over(None, "30", "2026-03-26 06:00")
    assert utc("2026-03-26 06:00") <= min(found) <= max(found) < utc("2026-03-26 06:30")
    assert max(found) > utc("2026-03-26 06:29")


def test_of_several_windows_the_first_that_opens_counts() -> None:
    friday = Window("fri", "07:00", "12:00", zone="UTC")
    for windows in ([OFFICE, friday], [friday, OFFICE]):
        assert spread_over(windows, "0", "2026-03-26 20:00", 1) == [utc("2026-03-27 07:00")]
        assert spread_over(windows, "0", "2026-03-27 13:00", 1) == [utc("2026-03-27 13:00")]


# Holidays


class Lazy(dict[date, str]):
    """Empty until it is asked, like an object of the library `holidays`."""

    def __contains__(self, day: object) -> bool:
        return day == date(2026, 3, 27)


@pytest.mark.parametrize(
    "calendar", [{date(2026, 3, 27)}, [date(2026, 3, 27)], Lazy(), lambda day: day == date(2026, 3, 27)]
)
def test_holidays_are_dates_or_a_function(calendar: Any) -> None:
    at = At(business_days=1, time="09:00", zone="UTC", calendar=calendar)
    assert at.resolve(NOON) == utc("2026-03-30 09:00")
    window = Window("mon-fri", "09:00", "18:00", zone="UTC", calendar=calendar)
    assert window.resolve(utc("2026-03-26 19:00")) == utc("2026-03-30 09:00")


def test_a_day_is_a_holiday_where_it_is_that_day() -> None:
    window = Window("mon-sun", "08:00", "20:00", zone="Asia/Tokyo", calendar=[date(2026, 3, 27)])
    assert window.resolve(utc("2026-03-26 23:30")) == utc("2026-03-27 23:00")


# Rules that never open


def never(day: date) -> bool:
    never.asked += 1  # type: ignore[attr-defined]
    return True


def but_for_the_skipped_hours(day: date) -> bool:
    """Leave only the Sundays on which 02:15 is skipped in Berlin."""
    never.asked += 1  # type: ignore[attr-defined]
    return not (day.month == 3 and day.day > 24 and day.weekday() == 6)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            At(business_days=1, time="09:00", zone="UTC", calendar=never),
            r"calendar=<function never .*> has no business",
        ),
        (
            Window("mon-fri", "09:00", "18:00", zone="UTC", calendar=never),
            r"Window\('mon-fri', '09:00', '18:00', calendar=<function never .*>\) stays closed until 2028-03-27",
        ),
        (
            Window("mon-sun", "02:15", "02:45", zone="Europe/Berlin", calendar=but_for_the_skipped_hours),
            r"stays closed until 2028-03-27",
        ),
    ],
)
def test_a_rule_that_never_opens_is_refused_after_a_bounded_search(rule: Any, said: str) -> None:
    never.asked = 0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=said):
        rule.resolve(NOON)
    assert 0 < never.asked < 2 * MOST_CLOSED_DAYS  # type: ignore[attr-defined]


def test_clocks_that_change_and_change_back_while_a_window_is_closed_are_noticed() -> None:
    """In Morocco they go back for Ramadan: a window that has just closed is then open again."""
    open_on = (date(2026, 2, 15), date(2026, 6, 1))
    window = Window("mon-sun", "02:15", "02:45", zone="Africa/Casablanca", calendar=lambda day: day not in open_on)
    assert window.resolve(utc("2026-02-15 01:50")) == utc("2026-02-15 02:15")
    assert window.resolve(utc("2026-02-15 02:50")) == utc("2026-06-01 01:15")


def test_a_window_that_opens_once_in_two_years_is_found() -> None:
    window = Window("mon-sun", "09:00", "10:00", zone="Europe/Rome", calendar=lambda day: day != date(2028, 2, 29))
    assert window.resolve(NOON) == utc("2028-02-29 08:00")


# What is refused


def at(**changes: Any) -> At:
    return At(**({"time": "09:00", "zone": "UTC"} | changes))


def window(*changes: Any, **more: Any) -> Window:
    hours = [*changes, *("mon-fri", "09:00", "18:00")[len(changes) :]]
    return Window(*hours, **({"zone": "UTC"} | more))


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: At(days=3, zone="UTC"), TypeError, r"At.* missing .* 'time'"),  # type: ignore[call-arg]
        (lambda: At(days=3, time="09:00"), TypeError, r"At.* missing .* 'zone'"),  # type: ignore[call-arg]
        (lambda: at(time="9"), ValueError, r"time='9' is no time of day; write it like '09:00' or '18:30:15'"),
        (lambda: at(time="24:00"), ValueError, r"time='24:00' is no time of day"),
        (lambda: at(time="٠٩:00"), ValueError, r"is no time of day"),
        (lambda: at(time=9), TypeError, r"time=9 is int; give text such as '09:00', or a time"),
        (lambda: at(time=time(9, microsecond=1)), ValueError, r"time=.* has a zone, a fold or microseconds"),
        (lambda: at(time=time(9, tzinfo=UTC)), ValueError, r"time=.* has a zone, a fold or microseconds"),
        (lambda: at(time=time(9, fold=1)), ValueError, r"time=.* has a zone, a fold or microseconds"),
        (lambda: at(zone="Europe/Rom"), ValueError, r"zone='Europe/Rom' is no time zone: did you mean 'Europe/Rome'\?"),
        (lambda: at(zone="Europe"), ValueError, r"zone='Europe' is no time zone"),
        (lambda: at(zone="../etc/passwd"), ValueError, r"zone='../etc/passwd' is no time zone"),
        (lambda: at(zone=""), ValueError, r"zone='' is no time zone"),
        (lambda: at(zone="a\0b"), ValueError, r"zone='a\\x00b' is no time zone"),
        (lambda: at(zone="x" * 5_000), ValueError, r"zone='xxx.*' is no time zone"),
        (lambda: at(zone=None), TypeError, r"zone=None is NoneType; give the name of a zone"),
        (
            lambda: at(zone=UTC),
            TypeError,
            r"zone=.*utc is timezone; give the name of a zone, .* or a zoneinfo.ZoneInfo",
        ),
        (lambda: at(days=-1), ValueError, r"days=-1 is too small; give 0 or more"),
        (lambda: at(days=1.5), TypeError, r"days=1.5 is float; give a whole number"),
        (lambda: at(days=10**9), ValueError, r"days=1000000000 is too large"),
        (lambda: at(months=-1), ValueError, r"months=-1 is too small"),
        (lambda: at(business_days="3"), TypeError, r"business_days='3' is str"),
        (lambda: at(calendar="IT"), ValueError, r"calendar='IT' is asked for business days only: give business_days"),
        (lambda: at(business_days=1, calendar=5), TypeError, r"calendar=5 is int; give a name of CALENDARS, dates, or"),
        (lambda: at(business_days=1, calendar=["2026-03-27"]), TypeError, r"calendar has '2026-03-27', which is str"),
        (lambda: window(calendar={NOON}), TypeError, r"calendar has datetime.*, which is datetime; give dates"),
        (lambda: window("mon-fry"), ValueError, r"weekdays='mon-fry' has 'mon-fry'; write days like 'mon-fri'"),
        (lambda: window(""), ValueError, r"weekdays='' has ''"),
        (lambda: window("mon-"), ValueError, r"weekdays='mon-' has 'mon-'"),
        (lambda: window(["mon"]), TypeError, r"weekdays=\['mon'\] is list; write days like 'mon-fri'"),
        (lambda: window("mon", "9h"), ValueError, r"start='9h' is no time of day"),
        (lambda: window("mon", "24:00"), ValueError, r"start='24:00' is no time of day"),
        (lambda: window("mon", "09:00", "24:30"), ValueError, r"end='24:30' is no time of day"),
        (lambda: window("mon", "09:00", ["18:00"]), TypeError, r"end=\['18:00'\] is list"),
        (lambda: window("mon", "09:00", "9:00"), ValueError, r"for a whole day give '00:00' and '24:00'"),
        (lambda: window(zone="Mars/Olympus"), ValueError, r"zone='Mars/Olympus' is no time zone"),
        (lambda: due_in_window_ms(0, "mon-fri", 0, "a"), TypeError, r"window='mon-fri' is str; give Window\("),  # type: ignore[arg-type]
        (lambda: due_in_window_ms(0, [], 0, "a"), ValueError, r"window=\[\] is never open"),
        (lambda: due_in_window_ms(0, [None], 0, "a"), TypeError, r"window=\[None\] is list; give Window\("),  # type: ignore[list-item]
        (lambda: at().resolve(datetime(2026, 3, 26)), ValueError, r"now=.* is naive"),
        (lambda: OFFICE.resolve(datetime(2026, 3, 26)), ValueError, r"now=.* is naive"),
        (lambda: at().resolve(datetime.min.replace(tzinfo=UTC)), ValueError, r"now=0001-.* is no time from 1900 to"),
        (lambda: OFFICE.resolve(datetime.max.replace(tzinfo=UTC)), ValueError, r"now=9999-.* is no time from 1900 to"),
        (lambda: at().resolve(date(2026, 3, 26)), TypeError, r"now=.* is date; give an aware datetime"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_is_named_with_the_fix(make: Callable[[], object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()


def test_rules_are_values() -> None:
    for make in (lambda: at(days=3), lambda: window(zone="Europe/Rome")):
        rule = make()
        assert rule == make()
        assert hash(rule) == hash(make())
        assert copy.deepcopy(rule).resolve(NOON) == rule.resolve(NOON)
    assert at() != at(days=1)
    assert repr(window()) == "Window(weekdays='mon-fri', start='09:00', end='18:00', zone='UTC', calendar=None)"


# Words


@pytest.mark.parametrize(
    ("rule", "now", "lines"),
    [
        (
            At(months=1, days=2, business_days=1, time="09:00", zone="Europe/Rome"),
            "2026-02-25 12:00",
            [
                "Wed 2026-02-25 13:00: now in Europe/Rome",
                "Wed 2026-03-25 00:00: 1 month on",
                "Fri 2026-03-27 00:00: 2 days on",
                "Sat 2026-03-28: weekend until Sun 2026-03-29",
                "Mon 2026-03-30 00:00: 1 business day on",
                "Mon 2026-03-30 09:00: at 09:00",
                "Mon 2026-03-30 07:00 UTC: the instant",
            ],
        ),
        (
            At(days=1, time="02:30", zone="Europe/Rome"),
            "2026-03-28 12:00",
            [
                "Sat 2026-03-28 13:00: now in Europe/Rome",
                "Sun 2026-03-29 00:00: 1 day on",
                "Sun 2026-03-29 03:30: 02:30 is skipped when the clocks go forward",
                "Sun 2026-03-29 01:30 UTC: the instant",
            ],
        ),
        (
            At(time="02:30:15", zone="Europe/Rome"),
            "2026-10-24 12:00",
            [
                "Sat 2026-10-24 14:00: now in Europe/Rome",
                "Sun 2026-10-25 00:00: the next day, because 02:30:15 is over",
                "Sun 2026-10-25 02:30:15: the first 02:30:15, because the clocks go back",
                "Sun 2026-10-25 00:30:15 UTC: the instant",
            ],
        ),
        (
            At(days=1, time="00:00", zone="America/Goose_Bay"),
            "2010-11-07 03:30",
            [
                "Sat 2010-11-06 23:30: now in America/Goose_Bay",
                "Sun 2010-11-07 00:00: 1 day on",
                "Sun 2010-11-07 00:00: the second 00:00, because the clocks go back",
                "Sun 2010-11-07 04:00 UTC: the instant",
            ],
        ),
        (
            Window("mon-fri", "09:00", "18:00", zone="Europe/Rome"),
            "2026-03-28 12:00",
            [
                "Sat 2026-03-28 13:00: now in Europe/Rome",
                "Sat 2026-03-28: weekend until Sun 2026-03-29",
                "Sun 2026-03-29 03:00: the clocks change",
                "Mon 2026-03-30 09:00: it opens",
                "Mon 2026-03-30 07:00 UTC: the instant",
            ],
        ),
        (
            Window("mon-sun", "09:00", "18:00", zone="Europe/Rome"),
            "2026-03-28 12:00",
            [
                "Sat 2026-03-28 13:00: now in Europe/Rome",
                "Sat 2026-03-28 13:00: it is open",
                "Sat 2026-03-28 12:00 UTC: the instant",
            ],
        ),
    ],
)
def test_a_preview_says_each_step(rule: At | Window, now: str, lines: list[str]) -> None:
    assert rule.preview(utc(now)).splitlines() == lines


CHRISTMAS = {date(2027, 12, 25): "Christmas Day", date(2027, 12, 27): "Boxing Day (observed)"}


@pytest.mark.parametrize(
    ("calendar", "christmas", "monday"),
    [
        (CHRISTMAS, "holiday (Christmas Day)", "holiday (Boxing Day (observed))"),
        (CHRISTMAS.get, "holiday (Christmas Day)", "holiday (Boxing Day (observed))"),
        (set(CHRISTMAS), "holiday", "holiday"),
        (lambda day: day in CHRISTMAS, "holiday", "holiday"),
    ],
)
def test_a_preview_names_the_days_that_it_skips(calendar: Any, christmas: str, monday: str) -> None:
    skipped = [f"Sat 2027-12-25: {christmas}", "Sun 2027-12-26: weekend", f"Mon 2027-12-27: {monday}"]
    window = Window("mon,wed-fri", "09:00", "18:00", zone="UTC", calendar=calendar)
    assert window.preview(utc("2027-12-24 20:00")).splitlines()[1:-1] == [
        *skipped,
        "Tue 2027-12-28: closed day",
        "Wed 2027-12-29 09:00: it opens",
    ]
    at = At(business_days=1, time="09:00", zone="UTC", calendar=calendar)
    assert at.preview(utc("2027-12-24 20:00")).splitlines()[1:-2] == [
        *skipped,
        "Tue 2027-12-28 00:00: 1 business day on",
    ]


def test_a_preview_of_many_closed_days_stays_short() -> None:
    lines = At(business_days=300, time="09:00", zone="UTC").preview(utc("2026-01-01 12:00")).splitlines()
    assert len(lines) == 1 + 11 + 3
    assert lines[11] == "Sat 2026-03-14: closed days go on, the last is Sun 2027-02-21"
