"""What the tests of the pipeline share."""

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from django_delayq.brokers import get_backend
from django_delayq.spark.write.summary import WriteSummary, read_summary

CARRIED, STORED, EMBEDDED = ALIASES = ("carried", "stored", "embedded")
"""Redis without a store; a store on PostgreSQL; a store on SQLite."""

ALONE = "alone"
"""PostgreSQL alone."""

PASSWORD = "of no database, yet nobody's business"
"""What Spark's processes give to databases that ask for none."""

HOUR_MS = 3_600_000


def write(rows: DataFrame, using: str, tmp_path: Path, **options: Any) -> WriteSummary:
    """Send the rows. Gives what the job counted."""
    path = str(tmp_path / "summary.json")
    given = {"using": using, "job": "test", "summaryPath": path, **options}
    rows.write.format("delayq").mode("append").options(**given).save()
    return read_summary(path)


def waiting(using: str) -> int:
    """Return how many messages wait."""
    return sum(each.pending + each.ready for each in get_backend(using).queue.counts().waiting)
