"""Figures of what has ended: counted once, and put together exactly."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from django_delayq.conf import get_alias
from django_delayq.models import ErrorMessage, FinishMessage, ReportRow
from django_delayq.spark.jobs.archive import archive
from django_delayq.spark.jobs.lake import Lake
from django_delayq.spark.jobs.page import page
from django_delayq.spark.jobs.report import ended, failures, figures, kinds, merged
from django_delayq.spark.jobs.report_rows import show
from tests.spark.ended import MINUTE, START, fail, finish
from tests.spark.support import STORED

COUNTS = ("messages", "finished", "failed", "cancelled", "retried")


def test_each_message_counts_once_by_what_became_of_it(spark: SparkSession) -> None:
    finish(STORED, [1, 3])
    finish(STORED, [5], failures=2)
    finish(STORED, [7], outcome="cancelled", started_at=None)
    fail(STORED, [9])
    fail(STORED, [11], failures=4, fingerprint="<script>")
    rows = ended(spark, STORED)
    (row,) = merged(figures(rows), "key").collect()
    assert {name: row[name] for name in COUNTS} == {
        "messages": 6, "finished": 3, "failed": 2, "cancelled": 1, "retried": 2
    }  # fmt: skip
    assert (row.lateness_p50, row.duration_p99) == (1000, 2000)
    assert [tuple(each) for each in kinds(failures(rows)).collect()] == [
        ("a", "<script>", 1),
        ("a", "ValueError in shop", 1),
    ]
    shown = page(figures(rows), failures(rows), "a & b")
    assert "<script>" not in shown
    assert "<td>default</td><td>a</td><td>6</td><td>2 (33.3 %)</td>" in shown
    assert shown.count("<svg") == 4
    assert "UTC: 6 an hour</title>" in shown
    assert "UTC: 1s</title>" in shown  # lateness


def test_days_put_together_have_the_quantiles_of_all_their_messages(spark: SparkSession) -> None:
    # On the first day one message was 100 s late, on the second nine were in time: an average of medians would be 50 s.
    finish(STORED, [1], started_at=START + MINUTE + timedelta(seconds=100), ended_at=START)
    finish(STORED, [2 * n + 3 for n in range(9)], started_at=START + timedelta(days=1))
    days = figures(ended(spark, STORED))
    assert days.select("date").distinct().count() == 2
    (row,) = merged(days, "key").collect()
    assert row.messages == 10
    exact = sorted([100_000, *(86_400_000 - 60_000 * (2 * n + 3) for n in range(9))])
    assert row.lateness_p50 in exact[4:6]
    assert row.lateness_p99 == exact[-1]


def test_the_admin_shows_the_last_report_by_hour_queue_and_key(spark: SparkSession) -> None:
    def report() -> list[tuple[object, ...]]:
        rows = ended(spark, STORED)
        number = show(figures(rows), failures(rows), STORED)
        assert number == ReportRow.objects.using(database).filter(alias=STORED).count()
        columns = ("hour", "queue", "key", "messages", "failed", "lateness_p50", "duration_p99", "fingerprint")
        return list(ReportRow.objects.using(database).order_by("hour", "key").values_list(*columns))

    database = get_alias(STORED).database
    figures_of_other: dict[str, Any] = {"hour": START, **dict.fromkeys(COUNTS, 1)}
    ReportRow(alias="other", queue="q", key="k", **figures_of_other).save(using=database)
    finish(STORED, [1, 3])
    fail(STORED, [2, 4, 6], fingerprint="KeyError in shop")
    fail(STORED, [8])
    finish(STORED, [61], outcome="cancelled", started_at=None)
    hour = START + MINUTE
    other = (START, "q", "k", 1, 1, None, None, "")
    assert report() == [
        other,
        (hour, "default", "a", 2, 0, 1000, 2000, ""),
        (hour, "default", "b/c=d", 4, 4, 1000, 2000, "KeyError in shop"),
        (hour + timedelta(hours=1), "default", "a", 1, 0, None, None, ""),
    ]
    FinishMessage.objects.using(database).delete()
    ErrorMessage.objects.using(database).filter(fingerprint="KeyError in shop").delete()
    assert report() == [other, (hour, "default", "b/c=d", 1, 1, 1000, 2000, "ValueError in shop")]


def test_what_was_archived_is_counted_with_what_was_not(spark: SparkSession, tmp_path: Path) -> None:
    finish(STORED, range(6))
    fail(STORED, [7])
    lake = Lake(str(tmp_path))
    before = figures(ended(spark, STORED, lake)).drop("lateness", "duration").orderBy("key", "hour").collect()
    archive(spark, STORED, lake, "finish", START + 4 * MINUTE)
    assert figures(ended(spark, STORED, lake)).drop("lateness", "duration").orderBy("key", "hour").collect() == before
