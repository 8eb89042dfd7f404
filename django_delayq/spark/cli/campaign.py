"""`delayq_spark campaign`: how far a schedule has come."""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from django_delayq.spark.jobs.campaign import campaign

HELP = "How far the messages of a tag have come, and when the last is due."


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("tag", help="The tag that they were scheduled with.")


def run(spark: SparkSession, options: dict[str, Any], write: Callable[[str], None]) -> int:
    for line in campaign(spark, options["using"], options["tag"]).lines():
        write(line)
    return 0
