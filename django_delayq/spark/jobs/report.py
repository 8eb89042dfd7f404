"""Compute how late messages started and how long they took, for each day, hour, queue and key.

Quantiles are kept as sketches (KLL, of Apache DataSketches), which can be merged: the quantiles of a quarter are those
of all its messages, not averages of days. Times are UTC.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, functions as f

from django_delayq.spark.jobs.archive import read_lake
from django_delayq.spark.jobs.lake import Lake
from django_delayq.spark.session import check_zone

COUNTS = ("messages", "finished", "failed", "cancelled", "retried")
SKETCHES = ("lateness", "duration")
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

_READ = ("queue", "key", "due_at", "started_at", "ended_at", "failures")


def ended(spark: SparkSession, using: str, lake: Lake | None = None) -> DataFrame:
    """Return the messages that have ended, from the tables, and from the lake if it is given.

    Each has an `outcome` and a `fingerprint`. The fingerprint of a message that did not fail is empty.
    """
    parts = []
    for table, extra in (("finish", "outcome"), ("error", "fingerprint")):
        reader = spark.read.format("delayq").options(using=using, table=table, columns=",".join([*_READ, extra]))
        found = [reader.load()]
        archived = read_lake(spark, lake, table) if lake is not None else None
        if archived is not None:
            found.append(archived.select(*_READ, extra))
        parts += [_with_outcome(each, table) for each in found]
    return reduce(DataFrame.unionByName, parts)


def _with_outcome(rows: DataFrame, table: str) -> DataFrame:
    if table == "error":
        return rows.withColumn("outcome", f.lit("failed"))
    return rows.withColumn("fingerprint", f.lit(""))


def figures(rows: DataFrame) -> DataFrame:
    """Return a row for each day, hour, queue and key: counts, and the sketches of lateness and duration in ms.

    Lateness is the time from when the last attempt was due until its handler started.
    """
    check_zone(rows.sparkSession)
    outcome = f.col("outcome")
    started = f.col("started_at").isNotNull() & (outcome != "cancelled")
    lateness = f.unix_millis("started_at") - f.unix_millis("due_at")
    duration = f.unix_millis("ended_at") - f.unix_millis("started_at")
    return rows.groupBy(*_hour(), "queue", "key").agg(
        f.count("*").alias("messages"),
        *(f.count_if(outcome == name).alias(name) for name in ("finished", "failed", "cancelled")),
        f.count_if(f.col("failures") > f.when(outcome == "failed", 1).otherwise(0)).alias("retried"),
        f.kll_sketch_agg_bigint(f.when(started, lateness)).alias("lateness"),
        f.kll_sketch_agg_bigint(f.when(started, duration)).alias("duration"),
    )


def merged(figures: DataFrame, *by: str) -> DataFrame:
    """Merge figures of any days by some of their columns, with quantiles (`lateness_p95`, …) in ms."""
    sums = [f.sum(name).alias(name) for name in COUNTS]
    together = figures.groupBy(*by).agg(*sums, *(f.kll_merge_agg_bigint(name).alias(name) for name in SKETCHES))
    return together.select(*by, *COUNTS, *(_quantile(name, rank) for name in SKETCHES for rank in QUANTILES))


def _quantile(sketch: str, rank: str) -> Column:
    # A sketch without values has no quantiles.
    value = f.kll_sketch_get_quantile_bigint(f.col(sketch), f.lit(QUANTILES[rank]))
    return f.when(f.kll_sketch_get_n_bigint(f.col(sketch)) > 0, value).alias(f"{sketch}_{rank}")


def failures(rows: DataFrame) -> DataFrame:
    """Count the messages that failed for good, for each day, hour, queue, key and kind of failure (`fingerprint`)."""
    failed = rows.where("outcome = 'failed'")
    return failed.groupBy(*_hour(), "queue", "key", "fingerprint").agg(f.count("*").alias("messages"))


def kinds(failures: DataFrame) -> DataFrame:
    """Merge the counts that `failures` made, of any days, by key and kind of failure. The most frequent comes first."""
    together = failures.groupBy("key", "fingerprint").agg(f.sum("messages").alias("messages"))
    return together.orderBy(f.desc("messages"), "key", "fingerprint")


def hour_ms() -> Column:
    """Return when the hour of a row of figures, or of failures, began, in epoch ms."""
    return (f.unix_date("date").cast("long") * 24 + f.col("hour")) * 3_600_000


def _hour() -> tuple[Column, Column]:
    return f.to_date("ended_at").alias("date"), f.hour("ended_at").alias("hour")
