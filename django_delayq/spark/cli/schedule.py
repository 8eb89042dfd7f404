"""`delayq_spark schedule`: send a message for each row, due by a plan."""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession, functions as f

from django_delayq.conf import get_alias
from django_delayq.management.support.arguments import whole_number
from django_delayq.spark.cli.arguments import (
    add_rows,
    holidays,
    milliseconds,
    names,
    picture,
    quiet_hours,
    rows_of,
    time_of_day,
    window,
)
from django_delayq.spark.files import write_whole
from django_delayq.spark.jobs.chart import png, svg
from django_delayq.spark.jobs.due import Plan
from django_delayq.spark.jobs.schedule import Messages, planned, send
from django_delayq.spark.write.options import WriteOptions
from django_delayq.spark.write.sinks import check_sink
from django_delayq.spark.write.task import check_key
from django_delayq.support.timestamps import wall_clock_ms

HELP = "Send a message for each row of a file or table, due by an expression and the rules given."


def add_plan(parser: ArgumentParser) -> None:
    """Add the options that say which messages the rows become, and when they are due. `reconcile` takes the same."""
    add_rows(parser)
    parser.add_argument("--key", required=True, help="The execute key.")
    parser.add_argument(
        "--id", type=names, required=True, metavar="COLUMNS", help="What the id is made of, after the key."
    )
    first = parser.add_mutually_exclusive_group(required=True)
    first.add_argument("--due", metavar="SQL", help="The local time: a column, or an expression.")
    first.add_argument("--after", metavar="SQL", help="An instant: then, or at --time some days after it.")
    time = parser.add_mutually_exclusive_group()
    time.add_argument("--time", type=time_of_day, metavar="TIME", help="The local time after --after, such as 09:00.")
    time.add_argument("--time-column", metavar="SQL", help="The column that has each row's.")
    for unit in ("months", "days", "business-days"):
        parser.add_argument(f"--{unit}", metavar="SQL", help=f"So many {unit.replace('-', ' ')} after --after.")
    zone = parser.add_mutually_exclusive_group(required=True)
    zone.add_argument("--zone", metavar="ZONE", help="The time zone of all rows, such as Europe/Berlin.")
    zone.add_argument("--zone-column", metavar="SQL", help="The column that has each row's time zone.")
    hours = parser.add_mutually_exclusive_group()
    hours.add_argument(
        "--window",
        type=window,
        metavar="WINDOW",
        help="When messages may be due, such as 'mon-fri 09:00-18:00'; several with semicolons between them.",
    )
    hours.add_argument("--window-column", metavar="SQL", help="The column that has each row's window.")
    hours.add_argument(
        "--quiet", dest="window", type=quiet_hours, metavar="FROM-UNTIL", help="Local hours in which nothing is due."
    )
    days = parser.add_mutually_exclusive_group()
    days.add_argument("--calendar", metavar="NAME", help="The holidays, by a name in CALENDARS.")
    days.add_argument("--calendar-column", metavar="SQL", help="The column that has each row's calendar.")
    days.add_argument("--holidays", type=holidays, metavar="DATES", help="The holidays: dates, or a file.")
    parser.add_argument(
        "--spread", type=milliseconds, default=0, metavar="LENGTH", help="Make each later, by less than this."
    )
    parser.add_argument(
        "--max-rate", type=whole_number(1), metavar="N", help="At most so many a second; what is over it is due later."
    )
    parser.add_argument("--tag", help="The tag of the messages.")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the plan, and the options of the write."""
    add_plan(parser)
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--data", type=names, default=[], metavar="COLUMNS", help="The fields of the data.")
    data.add_argument("--bare-data", metavar="COLUMN", help="The one column that is the data.")
    parser.add_argument("--queue", help="The queue. Default: the handler's.")
    parser.add_argument("--priority", type=whole_number(-100, 100), help="The priority. Default: the handler's.")
    parser.add_argument("--job", help="The name of the job's ledger. Needed without a store.")
    parser.add_argument("--quarantine", metavar="PATH", help="Where bad rows are kept apart; else they fail the job.")
    parser.add_argument("--dry-run", action="store_true", help="Show the forecast and send nothing.")
    parser.add_argument(
        "--chart", type=picture, metavar="FILE", help="Write the forecast as a picture, FILE.svg or FILE.png."
    )


def plan_of(options: dict[str, Any]) -> Plan:
    """Return the plan that the options ask for."""
    return Plan(
        zone=_of_all_or_column(options, "zone"),
        due=options["due"],
        after=options["after"],
        time=_of_all_or_column(options, "time"),
        months=options["months"],
        days=options["days"],
        business_days=options["business_days"],
        window=_of_all_or_column(options, "window"),
        calendar=_of_all_or_column(options, "calendar"),
        holidays=options["holidays"],
        spread_ms=options["spread"],
        max_per_second=options["max_rate"],
    )


def _of_all_or_column(options: dict[str, Any], name: str) -> Any:
    of_all = options[name]
    return options[f"{name}_column"] if of_all is None else f.lit(of_all)


def messages_of(options: dict[str, Any]) -> Messages:
    """Return the messages that the options ask for."""
    bare = options.get("bare_data")
    return Messages(
        key=options["key"],
        id_columns=options["id"],
        data_columns=[bare] if bare else options.get("data", []),
        bare=bool(bare),
        tag=options["tag"],
        queue=options.get("queue"),
        priority=options.get("priority"),
    )


def _of_write(options: dict[str, Any]) -> dict[str, str]:
    given = {"using": options["using"], "job": options["job"] or ""}
    if options["quarantine"]:
        given |= {"onBadRow": "quarantine", "quarantinePath": options["quarantine"]}
    return given


def run(spark: SparkSession, options: dict[str, Any], write: Callable[[str], None]) -> int:
    """Write the forecast, then send unless it is a dry run. Return the exit code."""
    alias = get_alias(options["using"])
    check_key(alias, options["key"])
    given = _of_write(options)
    if not options["dry_run"]:  # so that it is not found out after the forecast
        check_sink(alias, WriteOptions.of(given))
    out, forecast = planned(rows_of(spark, options), messages_of(options), plan_of(options), now_ms=wall_clock_ms())
    for line in forecast.lines():
        write(line)
    if options["chart"]:
        title = f"{options['key']}: messages due in each hour"
        is_png = options["chart"].lower().endswith(".png")
        write_whole(options["chart"], png(forecast.hours) if is_png else svg(forecast.hours, title))
    if options["dry_run"]:
        write("Nothing was sent.")
        return 0
    summary = send(out, **given)
    write(
        f"Read {summary.read}, sent {summary.sent}, there already {summary.already_there}, quarantined "
        f"{summary.quarantined}, in {summary.seconds:.1f} s ({summary.rows_per_second:.0f} rows/s)."
    )
    return 0
