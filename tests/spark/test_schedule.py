"""Each row lands on the right instant, by its own time zone and the rules of the plan."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import time_machine
from pyspark.sql import DataFrame, SparkSession, functions as f

from django_delayq import At, get_delay_message
from django_delayq.api.send import due_ms
from django_delayq.core.human_time import windows_from_words
from django_delayq.spark.errors import SparkError
from django_delayq.spark.jobs.due import Plan
from django_delayq.spark.jobs.rate import delayed
from django_delayq.spark.jobs.schedule import Messages, planned, schedule
from django_delayq.spark.write.ids import derived
from django_delayq.support.timestamps import to_epoch_ms
from django_delayq.support.units import to_ms
from tests.core.test_human_time import departures
from tests.spark.support import CARRIED, CASES, SETTINGS, name_of

NEW_YORK, BERLIN, TOKYO = "America/New_York", "Europe/Berlin", "Asia/Tokyo"
MESSAGES = Messages("note", id_columns=["n"], data_columns=["n"], bare=True)
ROWS_AFTER = "n int, now timestamp, zone string"
OFFICE = "'mon-fri 09:00-18:00'"


def rows_of(spark: SparkSession, *times: tuple[str, str]) -> DataFrame:
    """Rows with a local time and a zone each, numbered."""
    numbered = [(n, local, zone) for n, (local, zone) in enumerate(times)]
    return spark.createDataFrame(numbered, "n int, local string, zone string")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def found_by(rows: DataFrame, **rules: Any) -> list[datetime]:
    """Return when rows are due, in the order of their numbers."""
    out, _ = planned(rows, MESSAGES, Plan(zone="zone", **rules), settings=SETTINGS)
    return [row.due_at.astimezone(UTC) for row in out.orderBy("data").collect()]


def due_and_moved(
    spark: SparkSession, *times: tuple[str, str], now: str | None = None, **rules: Any
) -> tuple[list[str], dict[str, int]]:
    """Return when rows are due, in UTC, and how many were moved for each reason."""
    now_ms = None if now is None else to_epoch_ms(utc(now))
    plan = Plan(due="local", zone="zone", **rules)
    out, forecast = planned(rows_of(spark, *times), MESSAGES, plan, now_ms=now_ms)
    due = [f"{row.due_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for row in out.orderBy(f.col("data")).collect()]
    return due, {reason: count for reason, count in forecast.moved.items() if count}


def due(spark: SparkSession, *times: tuple[str, str], **rules: Any) -> list[str]:
    """Return when rows are due, in UTC."""
    return due_and_moved(spark, *times, **rules)[0]


# The table of cases that a send is held to as well


def by_name(cases: list[list[Any]], found: list[datetime]) -> tuple[dict[str, datetime], dict[str, datetime]]:
    """Return what was found and what is expected, by the names of the cases."""
    names = [case[-1] for case in cases]
    return dict(zip(names, found, strict=True)), {case[-1]: utc(case[-2]) for case in cases}


def test_a_local_time_is_the_instant_that_it_is_in_a_send(spark: SparkSession) -> None:
    cases = CASES["local"][1:]
    rows = rows_of(spark, *((local, zone) for zone, local, *_ in cases))
    found, expected = by_name(cases, found_by(rows, due="local"))
    assert found == expected


def test_quiet_hours_are_waited_out_as_in_a_send(spark: SparkSession) -> None:
    cases = CASES["quiet"][1:]
    numbered = [(n, *case[:4]) for n, case in enumerate(cases)]
    rows = spark.createDataFrame(numbered, "n int, zone string, local string, start string, end string")
    found, expected = by_name(cases, found_by(rows, due="local", window="'mon-sun ' || end || '-' || start"))
    assert found == expected


def test_days_are_counted_as_in_a_send(spark: SparkSession) -> None:
    cases = CASES["at"][1:]
    counts = ("months", "days", "business_days")
    numbered = [
        (
            n,
            utc(now),
            rule["zone"],
            rule["time"],
            *(rule.get(each, 0) for each in counts),
            name_of(rule.get("calendar")),
        )
        for n, (now, rule, *_) in enumerate(cases)
    ]
    columns = "n int, now timestamp, zone string, time string, months int, days int, business_days int, calendar string"
    rules = {each: each for each in ("time", *counts, "calendar")}
    found, expected = by_name(cases, found_by(spark.createDataFrame(numbered, columns), after="now", **rules))
    assert found == expected


def test_a_window_is_waited_for_as_in_a_send(spark: SparkSession) -> None:
    cases = CASES["window"][1:]
    numbered = [
        (n, utc(now), zone, f"{weekdays} {start}-{end}", name_of(holidays))
        for n, (now, (weekdays, start, end, zone, holidays), *_) in enumerate(cases)
    ]
    rows = spark.createDataFrame(numbered, "n int, now timestamp, zone string, window string, calendar string")
    found, expected = by_name(cases, found_by(rows, after="now", window="window", calendar="calendar"))
    assert found == expected


# Both at once, with ids, and a clock


@pytest.mark.parametrize(
    "window", [None, "mon-fri 09:00-18:00", "mon-fri 09:00-12:00; fri 11:00-12:10; sun 10:00-11:00"]
)
@pytest.mark.parametrize("spread", [None, "30m"])
def test_a_row_is_due_when_a_send_would_be(window: str | None, spread: str | None, spark: SparkSession) -> None:
    now = utc("2026-03-27 11:50:00.001")
    instants = [now + timedelta(hours=n) for n in (-50, -1, 0, 1, 60)]
    at = [At(time="11:59", zone=TOKYO, months=months, days=days) for months in (0, 2) for days in (0, 3)]
    windows = windows_from_words(window, TOKYO, None) if window else None
    whens: list[datetime | At] = [*instants, *at]
    with time_machine.travel(now, tick=False):
        sent = [due_ms(None, when, windows, spread, f"note:{n}")[1] for n, when in enumerate(whens)]
    plain = spark.createDataFrame([(n, instant, TOKYO) for n, instant in enumerate(instants)], ROWS_AFTER)
    later = [(n, now, TOKYO, each.months, each.days) for n, each in enumerate(at, start=len(instants))]
    counted = spark.createDataFrame(later, f"{ROWS_AFTER}, months int, days int")
    rules: dict[str, Any] = {"window": window and f"'{window}'", "spread_ms": to_ms(spread or 0, "spread")}
    counts: dict[str, Any] = {"time": "'11:59'", "months": "months", "days": "days"}
    found = []
    for rows, more in ((plain, {}), (counted, counts)):
        plan = Plan(zone="zone", after="now", **rules, **more)
        out, _ = planned(rows, MESSAGES, plan, now_ms=to_epoch_ms(now))
        found += [to_epoch_ms(row.due_at.astimezone(UTC)) for row in out.orderBy("data").collect()]
    assert found == sent


def test_an_instant_is_rounded_up_so_that_nothing_is_early(spark: SparkSession) -> None:
    """Else the last microsecond of a window would be rounded up to when it is closed."""
    last = datetime(2026, 3, 26, 17, 59, 59, 999_500, tzinfo=UTC)
    rows = spark.createDataFrame([(0, last, "UTC")], ROWS_AFTER)
    assert found_by(rows, after="now") == [utc("2026-03-26 18:00")]
    assert found_by(rows, after="now", window=OFFICE) == [utc("2026-03-27 09:00")]


def test_holidays_may_be_dates(spark: SparkSession) -> None:
    holidays = frozenset({date(2026, 12, 25), date(2026, 12, 28)})
    rows = spark.createDataFrame([(0, utc("2026-12-24 20:00"), "UTC")], ROWS_AFTER)
    assert found_by(rows, after="now", window=OFFICE, holidays=holidays) == [utc("2026-12-29 09:00")]
    later = found_by(rows, after="now", time="'11:00'", business_days="2", holidays=holidays)
    assert later == [utc("2026-12-30 11:00")]


def test_counts_may_be_text_as_csv_has_them(spark: SparkSession) -> None:
    rows = rows_of(spark, ("2", "UTC"))
    after = "TIMESTAMP '2026-03-26 10:00'"
    assert found_by(rows, after=after, time="'09:00'", days="local") == [utc("2026-03-28 09:00")]


@pytest.mark.parametrize("name", ["departures_2013-11-03.csv", "departures_2013-01.csv.gz"])
def test_real_departures_are_at_the_instants_at_which_they_always_were(name: str, spark: SparkSession) -> None:
    """Java's time zones are the second opinion: by them Spark found these instants before."""
    local = spark.createDataFrame([(each,) for each in departures(name)], "local timestamp_ntz")
    zones = f.explode(f.array(*map(f.lit, (NEW_YORK, BERLIN, TOKYO))))
    rows = local.withColumn("zone", zones).withColumn("n", f.monotonically_increasing_id())
    expected = f.convert_timezone(f.col("zone"), f.lit("UTC"), f.col("local")).cast("timestamp")
    bare = Messages("note", id_columns=["n"], data_columns=["expected"], bare=True)
    out, forecast = planned(rows.withColumn("expected", expected), bare, Plan(due="local", zone="zone"))
    assert forecast.rows in (3 * 902, 3 * 27_004)
    assert out.where("due_at <> data").count() == 0


# Ids, and reasons


def test_an_id_is_the_same_as_that_of_a_write(spark: SparkSession) -> None:
    values = (7, "a:b%c", date(2026, 11, 21), datetime(2026, 11, 21, 12, 0, 0, 1500, tzinfo=UTC), Decimal("1.50"))
    schema = "number int, text string, day date, instant timestamp, price decimal(9,2), local string, zone string"
    rows = spark.createDataFrame([(*values, "2026-11-21 12:00", "UTC")], schema)
    columns = [part.split()[0] for part in schema.split(", ")][: len(values)]
    out, _ = planned(rows, Messages("note", id_columns=columns), Plan(due="local", zone="zone"))
    assert [row.id for row in out.collect()] == [derived(columns, "note", *values)]


def test_columns_of_rows_may_have_our_names(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("2026-11-21 12:00", "UTC")], "due_at string, moved string")
    messages = Messages("note", id_columns=["due_at"], data_columns=["moved"], bare=True)
    ((key, id, data, due_at),) = planned(rows, messages, Plan(due="due_at", zone="moved"))[0].collect()
    assert (key, id, data) == ("note", "note:2026-11-21 12%3A00", "UTC")
    assert due_at.astimezone(UTC) == utc("2026-11-21 12:00")


def test_a_row_is_counted_under_the_rules_that_moved_it_and_no_other(spark: SparkSession) -> None:
    times = [
        ("2026-03-27 12:00", BERLIN),
        ("2026-03-29 02:30", BERLIN),  # a Sunday, and skipped
        ("2026-11-01 01:30", NEW_YORK),  # twice: the first
        ("2026-03-27 19:00", BERLIN),
    ]
    found, moved = due_and_moved(spark, *times, window=OFFICE)
    monday = "2026-03-30 07:00:00"
    assert found == ["2026-03-27 11:00:00", monday, "2026-11-02 14:00:00", monday]
    assert moved == {"clock change": 1, "window": 3}


def test_a_time_in_the_past_waits_for_its_window_as_in_a_send(spark: SparkSession) -> None:
    times = [("2026-03-27 12:00", "UTC"), ("2026-03-30 12:00", "UTC"), ("2026-03-30 20:00", "UTC")]
    saturday = "2026-03-28 12:00"
    found, moved = due_and_moved(spark, *times, now=saturday, window=OFFICE)
    assert found == ["2026-03-30 09:00:00", "2026-03-30 12:00:00", "2026-03-31 09:00:00"]
    assert moved == {"a time in the past": 1, "window": 2}
    found, moved = due_and_moved(spark, *times, now=saturday)
    assert found == [f"{local}:00" for local, _ in times]
    assert moved == {}


def test_spreading_is_the_same_at_each_run_and_ends_where_the_window_closes(spark: SparkSession) -> None:
    times = [("2026-11-20 12:00", "UTC")] * 200
    spread, moved = due_and_moved(spark, *times, spread_ms=600_000)
    assert (spread, moved) == due_and_moved(spark, *times, spread_ms=600_000)
    assert len(set(spread)) > 100
    assert "2026-11-20 12:00:00" <= min(spread) <= max(spread) < "2026-11-20 12:10:00"
    assert moved["spread"] > 190
    spread = due(spark, *times, spread_ms=600_000, window="'mon-sun 12:00-12:01'")
    assert "2026-11-20 12:00:00" <= min(spread) <= max(spread) < "2026-11-20 12:01:00"


def test_no_second_has_more_than_the_rate_and_nothing_is_due_before_its_time(spark: SparkSession) -> None:
    times = [("2026-11-21 12:00:00", "UTC")] * 25 + [("2026-11-21 12:00:01", "UTC")] * 3 + [("2026-11-21 13:00", "UTC")]
    found, moved = due_and_moved(spark, *times, max_per_second=10)
    assert [found.count(f"2026-11-21 12:00:0{second}") for second in range(4)] == [10, 10, 8, 0]
    assert all(later >= "2026-11-21 12:00:01" for later in found[25:28])
    assert found[28] == "2026-11-21 13:00:00"
    assert moved == {"rate": 18}


def test_a_queue_at_a_rate_is_counted_on_until_it_is_empty() -> None:
    assert list(delayed([(0, 25), (1, 3), (2, 1), (100, 10), (200, 11)], 10)) == [(0, 0), (1, 25), (2, 28), (200, 2000)]


@pytest.mark.parametrize(
    ("times", "rules", "told"),
    [
        (
            [("2026-11-21 12:00", "UTC"), ("2026-11-21 12:00", "Europe/Rom")],
            {},
            r"^'note:1': zone='Europe/Rom' is no time zone: did you mean 'Europe/Rome'\? Nothing was sent\.$",
        ),
        (
            [("2026-11-21 12:00", "Europe")],
            {"max_per_second": 1},
            r"^'note:0': zone='Europe' is no time zone.* Nothing was sent\.$",
        ),
        ([("2026-11-21 12:00", None)], {}, r"^'note:0': zone=None is NoneType; give the name of a zone"),
        ([("2026-11-21 12:00", "UTC"), ("noon", "UTC")], {}, "1 of 2 rows have no due time"),
        ([("2026-11-21 12:00", "UTC"), ("noon", "UTC")], {"max_per_second": 1}, "1 of 2 rows have no due time"),
        ([("0001-01-01 00:00", TOKYO)], {}, r"^'note:0': date value out of range; give a time of the years 1 to 9999"),
        (
            [("2026-11-20 17:59:59", "UTC")] * 3,
            {"window": OFFICE, "max_per_second": 1},
            "2 of 3 .* outside their windows",
        ),
        (
            [("2026-11-20 17:00", "UTC")],
            {"window": "local"},
            r"^'note:0': window='2026-11-20 17:00' has '2026-11-20 17:00'",
        ),
        (
            [("2026-11-21 12:00", "UTC")],
            {"window": OFFICE, "calendar": "zone"},
            r"^'note:0': calendar='UTC' is not in CALENDARS: there is: 2026-04-03",
        ),
    ],
)
def test_what_can_not_be_scheduled_is_said_and_nothing_is_sent(
    spark: SparkSession, times: list[tuple[str, str]], rules: dict[str, Any], told: str
) -> None:
    with pytest.raises(SparkError, match=told):
        planned(rows_of(spark, *times), MESSAGES, Plan(due="local", zone="zone", **rules), settings=SETTINGS)


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"due": "n"}, r"^due is int; give local times, as a TIMESTAMP_NTZ or text; CAST"),
        ({"after": "local"}, r"^after is string; give instants, as a TIMESTAMP; CAST"),
        ({"after": "now()", "time": "'9:00'", "days": "1.5"}, r"^days is decimal\(2,1\); give whole numbers"),
        (
            {"after": "now()", "time": "'9:00'", "days": "local"},
            r"^'note:0': days=None is NoneType; give a whole number",
        ),
        ({"after": "now()", "time": "local"}, r"^'note:0': time='noon' is no time of day"),
    ],
)
def test_a_column_that_is_no_rule_is_told(rules: dict[str, Any], told: str, spark: SparkSession) -> None:
    with pytest.raises(SparkError, match=told):
        planned(rows_of(spark, ("noon", "UTC")), MESSAGES, Plan(zone="zone", **rules))


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({}, "Give either due, a local time, or after, an instant"),
        ({"due": "a", "after": "b"}, "Give either due"),
        ({"due": "a", "time": "b"}, "give after, too, or put the time into due"),
        ({"after": "a", "days": "3"}, "days leads to a day, and not to a time: give time, too"),
        ({"after": "a", "business_days": "3"}, "business_days leads to a day"),
        ({"due": "a", "calendar": "b"}, "asked for windows and business days only"),
        ({"due": "a", "holidays": frozenset({date(2026, 12, 25)})}, "asked for windows and business days only"),
    ],
)
def test_rules_that_do_not_go_together_are_refused(rules: dict[str, Any], told: str) -> None:
    with pytest.raises(SparkError, match=told):
        Plan(zone="zone", **rules)


def test_a_schedule_sends_what_it_forecasts_each_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = rows_of(spark, *[("2096-11-21 12:00", NEW_YORK)] * 5, ("2096-11-21 13:59", NEW_YORK))
    plan = Plan(due="local", zone="zone")
    summary, forecast = schedule(rows, MESSAGES, plan, using=CARRIED, job="once")
    assert (summary.sent, forecast.rows, forecast.peak_per_minute) == (6, 6, 5)
    assert list(forecast.hours.values()) == [5, 1]
    again, _ = schedule(rows, MESSAGES, plan, using=CARRIED, job="once")
    assert (again.sent, again.already_there) == (0, 6)
    message = get_delay_message("note:5", using=CARRIED)
    assert message is not None
    assert (message.data, message.due_at) == (5, datetime(2096, 11, 21, 18, 59, tzinfo=UTC))
