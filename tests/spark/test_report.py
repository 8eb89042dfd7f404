"""Figures of what has ended: counted once, and put together exactly."""

from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from django_delayq.spark.jobs.archive import archive
from django_delayq.spark.jobs.lake import Lake
from django_delayq.spark.jobs.page import page
from django_delayq.spark.jobs.report import ended, figures, fingerprints, merged
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
    assert [tuple(each) for each in fingerprints(rows).collect()] == [
        ("a", "<script>", 1),
        ("a", "ValueError in shop", 1),
    ]
    shown = page(figures(rows), fingerprints(rows), "a & b")
    assert "<script>" not in shown
    assert "<td>a</td><td>6</td><td>2 (33.3 %)</td>" in shown
    assert "<svg" in shown


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


def test_what_was_archived_is_counted_with_what_was_not(spark: SparkSession, tmp_path: Path) -> None:
    finish(STORED, range(6))
    fail(STORED, [7])
    lake = Lake(str(tmp_path))
    before = figures(ended(spark, STORED, lake)).drop("lateness", "duration").orderBy("key", "hour").collect()
    archive(spark, STORED, lake, "finish", START + 4 * MINUTE)
    assert figures(ended(spark, STORED, lake)).drop("lateness", "duration").orderBy("key", "hour").collect() == before
