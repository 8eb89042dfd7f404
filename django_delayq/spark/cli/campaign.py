"""`delayq_spark campaign`: show the progress of a schedule."""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from django_delayq.spark.jobs.campaign import campaign

HELP = "How far the messages of a tag have come, and when the last is due."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument for the tag."""
    parser.add_argument("tag", help="The tag that they were scheduled with.")


def run(spark: SparkSession, options: dict[str, Any], write: Callable[[str], None]) -> int:
    """Write the progress of the tag's messages. Return the exit code."""
    for line in campaign(spark, options["using"], options["tag"]).lines():
        write(line)
    return 0
