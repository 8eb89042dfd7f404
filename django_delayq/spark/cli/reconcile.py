"""`delayq_spark reconcile`: compare the messages that should exist with the messages that do."""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from django_delayq.spark.cli.arguments import rows_of
from django_delayq.spark.cli.schedule import add_plan, messages_of, plan_of
from django_delayq.spark.files import write_tables
from django_delayq.spark.jobs.lake import Lake
from django_delayq.spark.jobs.reconcile import differences, in_lake_and_table, known, tables_against_broker
from django_delayq.spark.jobs.schedule import planned

HELP = "Hold rows, as schedule would send them, against messages; tables against the broker; a lake against tables."

_SHOWN = 20


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the plan, the lake, and the place of the differences."""
    add_plan(parser)
    parser.add_argument("--lake", metavar="PATH", help="What was archived there counts as sent.")
    parser.add_argument("--out", metavar="PATH", help="A directory for the differences, in Parquet.")


def run(spark: SparkSession, options: dict[str, Any], write: Callable[[str], None]) -> int:
    """Write the differences. Return the exit code: 1 if there are any."""
    using, lake = options["using"], Lake(options["lake"]) if options["lake"] else None
    plan = plan_of(options)
    expected, _ = planned(rows_of(spark, options), messages_of(options), plan)
    found = differences(expected, known(spark, using, options["key"], tag=options["tag"], lake=lake), plan)
    if lake is not None:
        found = found.unionByName(in_lake_and_table(spark, using, lake))
    found = found.unionByName(tables_against_broker(spark, using)).cache()
    number = found.count()
    for row in found.orderBy("id").take(_SHOWN):
        write(f"{row.id}: {row.difference}" if row.id else row.difference)
    if number > _SHOWN:
        write(f"and {number - _SHOWN} more.")
    if options["out"]:
        write_tables({options["out"]: found})
    write(f"{number} differences.")
    return 1 if number else 0
