"""Each row lands on the right instant, by its own time zone and the rules of the plan."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as f

from django_delayq import get_delay_message
from django_delayq.spark.errors import SparkError
from django_delayq.spark.jobs.due import Plan
from django_delayq.spark.jobs.rate import delayed
from django_delayq.spark.jobs.schedule import Messages, planned, schedule
from django_delayq.spark.write.ids import derived
from tests.spark.support import CARRIED

NEW_YORK, BERLIN, TOKYO = "America/New_York", "Europe/Berlin", "Asia/Tokyo"
MESSAGES = Messages("note", id_columns=["n"], data_columns=["n"], bare=True)


def rows_of(spark: SparkSession, *times: tuple[str, str]) -> DataFrame:
    """Rows with a local time and a zone each, numbered."""
    numbered = [(n, local, zone) for n, (local, zone) in enumerate(times)]
    return spark.createDataFrame(numbered, "n int, local string, zone string")


def due_and_moved(spark: SparkSession, *times: tuple[str, str], **rules: Any) -> tuple[list[str], dict[str, int]]:
    """Return when rows are due, in UTC, and how many were moved for each reason."""
    out, forecast = planned(rows_of(spark, *times), MESSAGES, Plan("local", "zone", **rules))
    due = [f"{row.due_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for row in out.orderBy(f.col("data")).collect()]
    return due, {reason: count for reason, count in forecast.moved.items() if count}


def due(spark: SparkSession, *times: tuple[str, str], **rules: Any) -> list[str]:
    """Return when rows are due, in UTC."""
    return due_and_moved(spark, *times, **rules)[0]


def test_an_id_is_the_same_as_that_of_a_write(spark: SparkSession) -> None:
    values = (7, "a:b%c", date(2026, 11, 21), datetime(2026, 11, 21, 12, 0, 0, 1500, tzinfo=UTC), Decimal("1.50"))
    schema = "number int, text string, day date, instant timestamp, price decimal(9,2), local string, zone string"
    rows = spark.createDataFrame([(*values, "2026-11-21 12:00", "UTC")], schema)
    columns = [part.split()[0] for part in schema.split(", ")][: len(values)]
    out, _ = planned(rows, Messages("note", id_columns=columns), Plan("local", "zone"))
    assert [row.id for row in out.collect()] == [derived(columns, "note", *values)]


def test_a_local_time_is_that_of_its_own_zone(spark: SparkSession) -> None:
    noon = "2026-11-21 12:00"
    assert due(spark, (noon, NEW_YORK), (noon, BERLIN), (noon, TOKYO), (noon, "UTC")) == [
        "2026-11-21 17:00:00",
        "2026-11-21 11:00:00",
        "2026-11-21 03:00:00",
        "2026-11-21 12:00:00",
    ]


def test_what_a_clock_change_skips_moves_forward_and_what_comes_twice_is_the_first(spark: SparkSession) -> None:
    times = [
        ("2026-03-08 02:30", NEW_YORK),  # does not exist: 03:30 is
        ("2026-11-01 01:30", NEW_YORK),  # twice: EDT comes first
        ("2026-03-29 02:30", BERLIN),
        ("2026-10-25 02:30", BERLIN),
        ("2026-03-08 01:59:59", NEW_YORK),
        ("2026-03-08 03:00", NEW_YORK),
    ]
    found, moved = due_and_moved(spark, *times)
    assert found == [
        "2026-03-08 07:30:00",
        "2026-11-01 05:30:00",
        "2026-03-29 01:30:00",
        "2026-10-25 00:30:00",
        "2026-03-08 06:59:59",
        "2026-03-08 07:00:00",
    ]
    assert moved == {"clock change": 2}


def test_in_quiet_hours_nothing_is_due_before_they_end(spark: SparkSession) -> None:
    times = [
        ("2026-11-21 20:59:59", "UTC"),
        ("2026-11-21 21:00", "UTC"),
        ("2026-11-22 07:59", "UTC"),
        ("2026-11-22 08:00", "UTC"),
    ]
    assert due(spark, *times, quiet=(time(21), time(8))) == [
        "2026-11-21 20:59:59",
        "2026-11-22 08:00:00",
        "2026-11-22 08:00:00",
        "2026-11-22 08:00:00",
    ]
    assert due(spark, ("2026-11-21 12:30", TOKYO), quiet=(time(12), time(13, 30))) == ["2026-11-21 04:30:00"]


def test_a_weekend_and_a_holiday_are_waited_out_at_the_same_time_of_day(spark: SparkSession) -> None:
    times = [("2026-12-24 09:30", BERLIN), ("2026-12-25 09:30", BERLIN), ("2026-12-26 09:30", BERLIN)]
    holidays = frozenset({date(2026, 12, 25), date(2026, 12, 28)})
    assert due(spark, *times, business_days=True, holidays=holidays) == [
        "2026-12-24 08:30:00",
        "2026-12-29 08:30:00",
        "2026-12-29 08:30:00",
    ]


def test_quiet_hours_that_end_on_a_weekend_are_followed_by_it(spark: SparkSession) -> None:
    friday_night = ("2026-11-20 23:00", "UTC")
    rules = {"quiet": (time(21), time(8)), "business_days": True}
    expected = ["2026-11-23 08:00:00"], {"quiet hours": 1, "business days": 1}
    assert due_and_moved(spark, friday_night, **rules) == expected


def test_a_row_is_counted_under_the_rule_that_moved_it_and_no_other(spark: SparkSession) -> None:
    thursday_night, saturday_noon = ("2026-11-19 23:00", "UTC"), ("2026-11-21 12:00", "UTC")
    found, moved = due_and_moved(spark, thursday_night, saturday_noon, quiet=(time(21), time(8)), business_days=True)
    assert found == ["2026-11-20 08:00:00", "2026-11-23 12:00:00"]
    assert moved == {"quiet hours": 1, "business days": 1}


def test_spreading_stays_in_its_window_and_is_the_same_at_each_run(spark: SparkSession) -> None:
    times = [("2026-11-21 12:00", "UTC")] * 200
    spread = due(spark, *times, spread_s=600)
    assert spread == due(spark, *times, spread_s=600)
    assert len(set(spread)) > 100
    assert "2026-11-21 12:00:00" <= min(spread) <= max(spread) <= "2026-11-21 12:10:00"


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
            [("2026-11-21 12:00", "Europe"), ("2026-11-21 12:00", "Mars/Olympus")],
            {},
            "There is no time zone 'Europe', 'Mars/Olympus'|There is no time zone 'Mars/Olympus', 'Europe'",
        ),
        ([("2026-11-21 12:00", "UTC"), ("noon", "UTC")], {}, "1 of 2 rows have no due time"),
        ([("2026-11-21 12:00", "UTC"), ("noon", "UTC")], {"max_per_second": 1}, "1 of 2 rows have no due time"),
        ([("2026-11-21 20:59:59", "UTC")] * 3, {"quiet": (time(21), time(8)), "max_per_second": 1}, "in quiet hours"),
        ([("2026-03-29 02:30", BERLIN)], {"quiet": (time(3), time(5))}, "or a clock change moves them there"),
    ],
)
def test_what_can_not_be_scheduled_is_said_and_nothing_is_sent(
    spark: SparkSession, times: list[tuple[str, str]], rules: dict[str, Any], told: str
) -> None:
    with pytest.raises(SparkError, match=told):
        planned(rows_of(spark, *times), MESSAGES, Plan("local", "zone", **rules))


def test_a_schedule_sends_what_it_forecasts_each_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = rows_of(spark, *[("2096-11-21 12:00", NEW_YORK)] * 5, ("2096-11-21 13:59", NEW_YORK))
    plan = Plan("local", "zone")
    summary, forecast = schedule(rows, MESSAGES, plan, using=CARRIED, job="once")
    assert (summary.sent, forecast.rows, forecast.peak_per_minute) == (6, 6, 5)
    assert list(forecast.hours.values()) == [5, 1]
    again, _ = schedule(rows, MESSAGES, plan, using=CARRIED, job="once")
    assert (again.sent, again.already_there) == (0, 6)
    message = get_delay_message("note:5", using=CARRIED)
    assert message is not None
    assert (message.data, message.due_at) == (5, datetime(2096, 11, 21, 18, 59, tzinfo=UTC))
