"""`delayq_spark archive`: move what ended long ago from the tables into a lake."""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from django_delayq.management.support.arguments import whole_number
from django_delayq.spark.cli.arguments import instant
from django_delayq.spark.jobs.archive import ARCHIVED, CHUNK_ROWS, archive
from django_delayq.spark.jobs.lake import Lake

HELP = "Move what ended into Parquet, and out of its table. Run again after a kill: nothing is lost or twice."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the lake, the age, the table, and the size of a chunk."""
    parser.add_argument("--lake", required=True, metavar="PATH", help="A directory, or the URI of one.")
    parser.add_argument("--before", type=instant, required=True, metavar="WHEN", help="A time in UTC, or an age: 30d.")
    parser.add_argument("--table", choices=ARCHIVED, help="One of the tables. Default: both.")
    parser.add_argument(
        "--chunk", type=whole_number(1), default=CHUNK_ROWS, metavar="ROWS", help="Rows a step. Default: %(default)s."
    )


def run(spark: SparkSession, options: dict[str, Any], write: Callable[[str], None]) -> int:
    """Archive the tables, and write how much was moved. Return the exit code."""
    lake = Lake(options["lake"])
    for table in [options["table"]] if options["table"] else ARCHIVED:
        done = archive(spark, options["using"], lake, table, options["before"], chunk_rows=options["chunk"])
        write(f"{table}: {done.rows} rows in {done.chunks} chunks; {done.recovered} rows of a run that was stopped.")
    return 0
