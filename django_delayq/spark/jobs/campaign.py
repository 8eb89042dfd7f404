"""Measure the progress of a schedule: what has become of its messages, and when it is expected to end."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import DataFrame, Row, SparkSession, functions as f

from django_delayq.conf import get_alias
from django_delayq.spark.errors import SparkError
from django_delayq.support.timestamps import from_ms

LATELY = timedelta(minutes=10)
"""The pace is measured over this time before now."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """The messages of a tag, counted at the time `at`.

    `waiting` and `overdue` also count messages that run. `last_due_at` is None if no message waits or runs.
    `ended_lately` counts messages that finished or failed within `LATELY`.
    """

    at: datetime
    waiting: int
    overdue: int
    finished: int
    cancelled: int
    failed: int
    ended_lately: int
    last_due_at: datetime | None

    @property
    def total(self) -> int:
        """Return how many messages there are."""
        return self.waiting + self.finished + self.cancelled + self.failed

    @property
    def ends_at(self) -> datetime | None:
        """Return the forecast end, or None if there is no forecast.

        It is when the last message is due, but not before the overdue ones have ended at the pace of `LATELY`. It is
        None if no message is left, or if some are overdue and none has ended lately.
        """
        if self.last_due_at is None or not self.overdue:
            return self.last_due_at
        if not self.ended_lately:
            return None
        return max(self.last_due_at, self.at + self.overdue * LATELY / self.ended_lately)

    def lines(self) -> list[str]:
        """Return the progress in lines for a terminal."""
        if not self.total:
            return ["There is no message of this tag."]
        done = self.total - self.waiting
        return [
            f"{done} of {self.total} have ended ({100 * done / self.total:.1f} %), {self._end()}",
            f"waiting {self.waiting} (of these due already: {self.overdue}), finished {self.finished}, "
            f"failed {self.failed}, cancelled {self.cancelled}",
        ]

    def _end(self) -> str:
        if self.last_due_at is None:
            return "none is left"
        last = f"the last is due {_instant(self.last_due_at)}"
        if not self.overdue:
            return last
        if self.ends_at is None:
            return f"{last}, and none has ended in the last 10 minutes: are workers running?"
        return f"{last}; at the pace of the last 10 minutes the end is {_instant(self.ends_at)}"


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def campaign(spark: SparkSession, using: str, tag: str) -> Campaign:
    """Count the messages of a tag.

    It needs a store, because a broker alone forgets what has ended. Raises `SparkError` for an alias without one.
    """
    if get_alias(using).store is None:
        raise SparkError(f"{using!r} has no store, and a broker alone forgets what has ended.")
    left = _of(spark, using, "ready", tag, "due_at").agg(
        f.count("*").alias("waiting"),
        f.count_if(f.col("due_at") <= f.now()).alias("overdue"),
        f.max(f.unix_millis("due_at")).alias("last_ms"),
        f.unix_millis(f.now()).alias("now_ms"),
    )
    (ready,) = left.collect()
    ended = {row.outcome: row for row in _ended(_of(spark, using, "finish", tag, "outcome,ended_at"), "outcome")}
    finished, cancelled = (ended.get(outcome, Row(number=0, lately=0)) for outcome in ("finished", "cancelled"))
    (failed,) = _ended(_of(spark, using, "error", tag, "ended_at"))
    return Campaign(
        at=from_ms(ready.now_ms),  # an instant would come in local time
        waiting=ready.waiting,
        overdue=ready.overdue,
        finished=finished.number,
        cancelled=cancelled.number,
        failed=failed.number,
        ended_lately=finished.lately + failed.lately,
        last_due_at=None if ready.last_ms is None else from_ms(ready.last_ms),
    )


def _ended(rows: DataFrame, *by: str) -> list[Row]:
    lately = f.count_if(f.col("ended_at") > f.now() - f.expr(f"INTERVAL {LATELY.seconds} SECONDS"))
    return rows.groupBy(*by).agg(f.count("*").alias("number"), lately.alias("lately")).collect()


def _of(spark: SparkSession, using: str, table: str, tag: str, column: str) -> DataFrame:
    reader = spark.read.format("delayq").options(using=using, table=table, columns=f"tag,{column}")
    rows = reader.option("pushFilters", "true").load()
    return rows.where(f.col("tag") == tag)
