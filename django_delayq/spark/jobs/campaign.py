"""How far a schedule has come: its messages by what has become of them, and when the last is due."""

from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession, functions as f

from django_delayq.conf import get_alias
from django_delayq.instants import from_ms
from django_delayq.spark.errors import SparkError


@dataclass(frozen=True, slots=True)
class Campaign:
    """Messages of a tag. `last_due_at` is the forecast end, None when none is left."""

    waiting: int
    overdue: int
    finished: int
    cancelled: int
    failed: int
    last_due_at: datetime | None

    @property
    def total(self) -> int:
        """All of them."""
        return self.waiting + self.finished + self.cancelled + self.failed

    def lines(self) -> list[str]:
        """For a terminal."""
        if not self.total:
            return ["There is no message of this tag."]
        done = self.total - self.waiting
        end = f"the last is due {self.last_due_at:%Y-%m-%d %H:%M:%S} UTC" if self.last_due_at else "none is left"
        return [
            f"{done} of {self.total} have ended ({100 * done / self.total:.1f} %), {end}",
            f"waiting {self.waiting} (of these due already: {self.overdue}), finished {self.finished}, "
            f"failed {self.failed}, cancelled {self.cancelled}",
        ]


def campaign(spark: SparkSession, using: str, tag: str) -> Campaign:
    """Count the messages of a tag. Needs a store: a broker alone forgets what has ended. Raises `SparkError`."""
    if get_alias(using).store is None:
        raise SparkError(f"{using!r} has no store, and a broker alone forgets what has ended.")
    left = _of(spark, using, "ready", tag, "due_at").agg(
        f.count("*").alias("waiting"),
        f.count_if(f.col("due_at") <= f.now()).alias("overdue"),
        f.max(f.unix_millis("due_at")).alias("last_ms"),
    )
    (ready,) = left.collect()
    ended = {
        row.outcome: row["count"]
        for row in _of(spark, using, "finish", tag, "outcome").groupBy("outcome").count().collect()
    }
    failed = _of(spark, using, "error", tag, "id").count()
    last_due_at = None if ready.last_ms is None else from_ms(ready.last_ms)  # an instant would come in local time
    finished, cancelled = ended.get("finished", 0), ended.get("cancelled", 0)
    return Campaign(ready.waiting, ready.overdue, finished, cancelled, failed, last_due_at)


def _of(spark: SparkSession, using: str, table: str, tag: str, column: str) -> DataFrame:
    reader = spark.read.format("delayq").options(using=using, table=table, columns=f"tag,{column}")
    rows = reader.option("pushFilters", "true").load()
    return rows.where(f.col("tag") == tag)
