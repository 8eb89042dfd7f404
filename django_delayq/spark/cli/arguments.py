"""The options that more than one job takes, and types for argparse."""

from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from django_delayq.core.human_time import At, windows_from_words
from django_delayq.spark.errors import SparkError
from django_delayq.support.units import to_ms

_WITHOUT_FILES = ("jdbc", "delayq")
FORMATS = ("csv", "parquet", "json", "orc", *_WITHOUT_FILES)


def add_rows(parser: ArgumentParser) -> None:
    """Add `--from` and the options that belong to it, for a job that reads the site's own rows."""
    parser.add_argument(
        "--from", dest="source", metavar="PATH", help="Where the rows are: a file, a directory, an URI."
    )
    parser.add_argument("--format", choices=FORMATS, default="csv", help="What they are in. Default: %(default)s.")
    parser.add_argument(
        "--read-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="An option of Spark's reader of that format.",
    )
    parser.add_argument("--where", metavar="SQL", help="Only rows for which this holds.")


def rows_of(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    """Return the rows that `--from` names and `--where` keeps.

    CSV must have a header, and its columns are text. Raises `SparkError` for options that don't fit.
    """
    reader = spark.read.format(options["format"])
    if options["format"] == "csv":
        reader = reader.option("header", "true").option("mode", "FAILFAST")
    for given in options["read_option"]:
        name, found, value = given.partition("=")
        if not found:
            raise SparkError(f"--read-option {given!r} is no NAME=VALUE.")
        reader = reader.option(name, value)
    if not options["source"] and options["format"] not in _WITHOUT_FILES:
        raise SparkError(f"Which rows? Give --from, where the {options['format']} is.")
    rows = _loaded(reader, options["source"])
    return rows.where(options["where"]) if options["where"] else rows


def _loaded(reader: DataFrameReader, source: str | None) -> DataFrame:
    try:
        return reader.load(source) if source else reader.load()
    except (Py4JError, PySparkException) as error:
        if "No suitable driver" not in str(error):
            raise
        raise SparkError(
            "Spark has no driver for this url of JDBC: name its file in spark.jars, or its coordinates in "
            "spark.jars.packages, of $SPARK_CONF_DIR/spark-defaults.conf or of spark-submit."
        ) from error


def names(text: str) -> list[str]:
    """Return names from a text with commas between them."""
    return [part.strip() for part in text.split(",") if part.strip()]


def window(text: str) -> str:
    """Return the text of windows such as "mon-fri 09:00-18:00", if it is one."""
    try:
        windows_from_words(text, "UTC", None)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return text


def quiet_hours(text: str) -> str:
    """Return the text of the window that is left by quiet hours such as 21:00-08:00."""
    start, _, end = (part.strip() for part in text.partition("-"))
    try:
        return window(f"mon-sun {end}-{start}")
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{text!r} are no hours; write them like 21:00-08:00. ({error})") from error


def time_of_day(text: str) -> str:
    """Return the text of a time of day such as 09:00, if it is one."""
    try:
        At(time=text, zone="UTC")
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return text


def holidays(text: str) -> frozenset[date]:
    """Return dates from a text with commas between them, or from a file with one in each line."""
    lines = Path(text).read_text().split() if Path(text).is_file() else names(text)
    try:
        return frozenset(map(date.fromisoformat, lines))
    except ValueError as error:
        raise ArgumentTypeError(f"{error}; give dates such as 2026-12-25, or a file with one a line.") from error


def milliseconds(text: str) -> int:
    """Return a length of time such as 2h in milliseconds."""
    try:
        return to_ms(text, "a length of time")
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def picture(text: str) -> str:
    """Return the name of a picture, which must end with .svg or .png."""
    if not text.lower().endswith((".svg", ".png")):
        raise ArgumentTypeError(f"{text!r} is no picture that can be drawn; end the name with .svg or .png.")
    return text


def instant(text: str) -> datetime:
    """Return an instant from a time in UTC, or from an age such as 30d."""
    try:
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - timedelta(milliseconds=to_ms(text, "how old"))
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is neither a time such as 2026-11-01 nor an age such as 30d.") from error
