"""`delayq_spark report`: how late and how long, as Parquet and as a page."""

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession, functions as f

from django_delayq.spark.cli.arguments import instant
from django_delayq.spark.jobs.lake import Lake
from django_delayq.spark.jobs.page import page
from django_delayq.spark.jobs.report import ended, figures, fingerprints

HELP = "Figures of what has ended: lateness and duration, retries and failures, for each day, hour, queue and key."


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--lake", metavar="PATH", help="Read what was archived there too.")
    parser.add_argument(
        "--since", type=instant, metavar="WHEN", help="Only what ended since: a time in UTC, or an age."
    )
    parser.add_argument("--out", required=True, metavar="PATH", help="A directory for the figures, in Parquet.")
    parser.add_argument("--html", metavar="FILE", help="Write the report as a page.")


def run(spark: SparkSession, options: dict[str, Any], write: Callable[[str], None]) -> int:
    rows = ended(spark, options["using"], Lake(options["lake"]) if options["lake"] else None)
    if options["since"]:
        rows = rows.where(f.col("ended_at") >= f.lit(options["since"]))
    figures(rows).write.mode("overwrite").option("compression", "zstd").parquet(options["out"])
    kept = spark.read.parquet(options["out"])
    total = kept.agg(f.sum("messages")).collect()[0][0] or 0
    write(f"{total} messages; figures in {options['out']}.")
    if options["html"]:
        Path(options["html"]).write_text(page(kept, fingerprints(rows), f"django-delayq: {options['using']}"))
        write(f"The page is {options['html']}.")
    return 0
