"""`delayq_spark report`: report how late messages started and how long they took, as Parquet and as a page."""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession, functions as f

from django_delayq.spark.cli.arguments import instant
from django_delayq.spark.files import write_tables, write_whole
from django_delayq.spark.jobs.lake import Lake
from django_delayq.spark.jobs.page import page
from django_delayq.spark.jobs.report import ended, failures, figures
from django_delayq.spark.jobs.report_rows import show

HELP = "Figures of what has ended: lateness and duration, retries and failures, for each day, hour, queue and key."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the lake, the span of time, and the outputs."""
    parser.add_argument("--lake", metavar="PATH", help="Read what was archived there too.")
    parser.add_argument(
        "--since",
        type=instant,
        metavar="WHEN",
        help="Only what ended since the hour of this: a time in UTC, or an age. Default: all.",
    )
    parser.add_argument(
        "--out", required=True, metavar="PATH", help="A directory for the figures and the failures, in Parquet."
    )
    parser.add_argument("--html", metavar="FILE", help="Write the report as a page.")
    parser.add_argument("--admin", action="store_true", help="Show it in the admin, in the place of the last one.")


def run(spark: SparkSession, options: dict[str, Any], write: Callable[[str], None]) -> int:
    """Compute the figures, and write them to each output. Return the exit code."""
    rows = ended(spark, options["using"], Lake(options["lake"]) if options["lake"] else None)
    if options["since"]:
        hour = options["since"].replace(minute=0, second=0, microsecond=0)  # figures are of whole hours
        rows = rows.where(f.col("ended_at") >= f.lit(hour))
    places = [f"{options['out']}/{name}" for name in ("figures", "failures")]
    write_tables(dict(zip(places, (figures(rows), failures(rows)), strict=True)))
    counted, failed = map(spark.read.parquet, places)  # so that nothing is computed twice
    total = counted.agg(f.sum("messages")).collect()[0][0] or 0
    write(f"{total} messages; figures in {options['out']}.")
    if options["html"]:
        write_whole(options["html"], page(counted, failed, f"django-delayq: {options['using']}"))
        write(f"The page is {options['html']}.")
    if options["admin"]:
        write(f"The admin shows {show(counted, failed, options['using'])} rows.")
    return 0
