"""`delayq_spark compact`: merge the small files of a lake."""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from django_delayq.spark.jobs.archive import ARCHIVED
from django_delayq.spark.jobs.compact import compact
from django_delayq.spark.jobs.lake import Lake

HELP = "Make one file of those in each directory of a lake. Run again after a kill: nothing is lost or twice."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument for the lake."""
    parser.add_argument("--lake", required=True, metavar="PATH", help="A directory, or the URI of one.")


def run(spark: SparkSession, options: dict[str, Any], write: Callable[[str], None]) -> int:
    """Compact the lake, and write how many files there were. Return the exit code."""
    for table in ARCHIVED:
        done = compact(Lake(options["lake"]), table)
        write(f"{table}: {done.files} files into {done.directories}.")
    return 0
