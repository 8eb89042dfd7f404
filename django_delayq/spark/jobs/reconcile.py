"""Compare what should be with what is: business tables with messages, tables with the broker, a lake with tables."""

from functools import reduce

from pyspark.sql import DataFrame, SparkSession, functions as f

from django_delayq.brokers import get_backend
from django_delayq.conf import get_alias
from django_delayq.spark.jobs.archive import ARCHIVED, read_lake
from django_delayq.spark.jobs.due import Plan
from django_delayq.spark.jobs.lake import Lake
from django_delayq.spark.read.shapes import TABLES, WAITING

MISSING, UNEXPECTED, ANOTHER_TIME = "there is no such message", "nothing asks for it", "scheduled for another time"
TWICE, IN_BOTH = "there is more than one", "in the lake and in a table"

_KNOWN = ("id", "key", "tag", "scheduled_at", "sent_at")


def known(spark: SparkSession, using: str, key: str, *, tag: str | None = None, lake: Lake | None = None) -> DataFrame:
    """Return every message of a key, and of a tag if given, wherever it is: `id`, `scheduled_at` and `sent_at`.

    Without a store these are the waiting messages.
    """
    sources = [WAITING] if get_alias(using).store is None else list(TABLES)
    reader = spark.read.format("delayq").options(using=using, columns=",".join(_KNOWN))
    found = [reader.option("table", source).load() for source in sources]
    for table in ARCHIVED if lake is not None else ():
        archived = read_lake(spark, lake, table) if lake is not None else None
        if archived is not None:
            found.append(archived.select(*_KNOWN))
    condition = f.col("key") == key
    if tag is not None:
        condition &= f.col("tag") == tag
    every = (each.where(condition).select("id", "scheduled_at", "sent_at") for each in found)
    return reduce(DataFrame.unionByName, every)


def differences(expected: DataFrame, actual: DataFrame, plan: Plan | None = None) -> DataFrame:
    """Return the `id` and `difference` of messages that don't agree.

    Both arguments have `id`; `actual` also has `scheduled_at` and `sent_at`, as `known` returns it. If `expected` has
    `due_at`, times are compared too. A message that was due before it was sent may be scheduled for the time when it
    was sent, and by a `plan` with a window or a spread for a later one: that is no difference.
    """
    at = f.col("due_at") if "due_at" in expected.columns else f.lit(None).cast("timestamp")
    wanted = expected.select("id", at.alias("_wanted"), f.lit(True).alias("_asked"))
    there = actual.groupBy("id").agg(
        f.count("*").alias("_count"),
        f.max("scheduled_at").alias("_at"),
        f.max("sent_at").alias("_sent_at"),
        f.lit(True).alias("_there"),
    )
    both = wanted.join(there, "id", "full")
    wanted_ms = f.ceil(f.unix_micros("_wanted") / 1000)
    # A message that was due before it was sent is scheduled for the time when it was sent.
    differs = (wanted_ms != f.unix_millis("_at")) & (f.col("_at") != f.col("_sent_at"))
    if plan is not None and (plan.window is not None or plan.spread_ms):
        may_wait = (wanted_ms < f.unix_millis("_sent_at") + plan.spread_ms) & (f.col("_at") > f.col("_sent_at"))
        differs &= ~may_wait
    found = (
        f.when(f.col("_there").isNull(), MISSING)
        .when(f.col("_asked").isNull(), UNEXPECTED)
        .when(f.col("_count") > 1, TWICE)
        .when((wanted_ms > f.unix_millis("_at")) | differs, ANOTHER_TIME)
    )
    return both.select("id", found.alias("difference")).where("difference IS NOT NULL")


def in_lake_and_table(spark: SparkSession, using: str, lake: Lake) -> DataFrame:
    """Return the `id` and `difference` of rows of the lake that a table still has."""
    reader = spark.read.format("delayq").options(using=using, columns="pk,id")
    tables = reduce(DataFrame.unionByName, (reader.option("table", name).load() for name in TABLES))
    both = tables.limit(0)
    for name in ARCHIVED:
        archived = read_lake(spark, lake, name)
        if archived is not None:
            both = both.unionByName(tables.join(archived.select("pk"), "pk", "semi"))
    return both.select("id", f.lit(IN_BOTH).alias("difference"))


def tables_against_broker(spark: SparkSession, using: str) -> DataFrame:
    """Return the differences that `delayq audit` finds.

    Their `id` is NULL, because a line may be about many messages.
    """
    lines = get_backend(using).queue.audit().differences
    return spark.createDataFrame([(None, line) for line in lines], "id string, difference string")
