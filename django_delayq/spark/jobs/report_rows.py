"""Write a report as rows of the table `delayq_report`, which the admin shows without Spark."""

from typing import Any

from django.db import transaction
from pyspark.sql import DataFrame, Row, functions as f

from django_delayq.brokers.base import BATCH
from django_delayq.models import ReportRow
from django_delayq.spark.jobs.archive import database_of
from django_delayq.spark.jobs.report import COUNTS, QUANTILES, SKETCHES, hour_ms, merged
from django_delayq.support.timestamps import from_ms

_GROUP = ("at", "queue", "key")
_FIGURES = (*COUNTS, *(f"{name}_{rank}" for name in SKETCHES for rank in QUANTILES))


def show(figures: DataFrame, failures: DataFrame, using: str) -> int:
    """Replace the last report with the figures of each hour, in one transaction. Return how many rows there are.

    Raises `SparkError` for an alias without a store.
    """
    database = database_of(using)
    hours = merged(figures.withColumn("at", hour_ms()), *_GROUP)
    by_kind = failures.withColumn("at", hour_ms()).groupBy(*_GROUP)
    most = by_kind.agg(f.max_by("fingerprint", f.struct("messages", "fingerprint")).alias("fingerprint"))
    rows = [_row(using, row) for row in hours.join(most, list(_GROUP), "left").collect()]
    with database.available(), transaction.atomic(database.using):
        known = ReportRow.objects.using(database.using)
        known.filter(alias=using).delete()
        known.bulk_create(rows, batch_size=BATCH)
    return len(rows)


def _row(using: str, row: Row) -> ReportRow:
    figures: dict[str, Any] = {name: row[name] for name in _FIGURES}
    figures |= {"hour": from_ms(row.at), "fingerprint": row.fingerprint or ""}
    return ReportRow(alias=using, queue=row.queue, key=row.key, **figures)
