"""The command line: what it takes, what it writes, and how it ends."""

import re
import sys
from argparse import ArgumentTypeError
from datetime import UTC, date, datetime, timedelta
from io import BytesIO, StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections
from PIL import Image
from pyspark.sql import SparkSession
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.conf import get_alias
from django_delayq.models import ErrorMessage
from django_delayq.spark.cli.arguments import (
    holidays,
    instant,
    milliseconds,
    picture,
    quiet_hours,
    rows_of,
    time_of_day,
    window,
)
from django_delayq.spark.jobs.chart import png
from django_delayq.spark.jobs.lake import Lake
from tests.spark.ended import fail
from tests.spark.support import CALENDARS, PASSWORD, SETTINGS, STORED, waiting

CUSTOMERS = "customer,on,zone\n1,2096-11-21,Europe/Berlin\n2,2096-11-21,Asia/Tokyo\n3,2096-11-22,Europe/Berlin\n"


@pytest.fixture
def plan(tmp_path: Path) -> list[str]:
    """Return what schedule and reconcile take."""
    (tmp_path / "customers.csv").write_text(CUSTOMERS)
    rows = ["--from", str(tmp_path / "customers.csv"), "--id", "customer", "--tag", "t"]
    return ["--using", STORED, "--key", "note", *rows, "--due", "on || ' 09:00'", "--zone-column", "zone"]


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("delayq_spark", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.usefixtures("spark")
def test_a_schedule_is_forecast_then_sent_then_reconciled(plan: list[str], tmp_path: Path) -> None:
    chart = tmp_path / "forecast.svg"
    told = run("schedule", *plan, "--data", "customer", "--dry-run", "--chart", str(chart))
    assert "3 messages, due from 2096-11-21 00:00 to 2096-11-22 09:00 (UTC)" in told
    assert told.endswith("Nothing was sent.\n")
    assert chart.read_text().count("<rect") == 3
    assert waiting(STORED) == 0
    assert "Read 3, sent 3, there already 0, quarantined 0" in run(
        "schedule", *plan, "--data", "customer", "--priority", "5"
    )
    assert {each.queue for each in get_backend(STORED).queue.counts().waiting} == {"notes^5"}
    assert run("reconcile", *plan).endswith("0 differences.\n")
    assert "0 of 3 have ended (0.0 %), the last is due 2096-11-22 08:00:00 UTC" in run(
        "campaign", "--using", STORED, "t"
    )
    get_backend(STORED).queue.purge(["note:2"])
    with (tmp_path / "customers.csv").open("a") as customers:
        customers.write("\x1b[2J,2096-11-22,Europe/Berlin\n")
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("delayq_spark", "reconcile", *plan, stdout=out)
    assert ended.value.code == 1
    lines = [r"note:\x1b[2J: there is no such message", "note:2: there is no such message", "2 differences."]
    assert out.getvalue().splitlines() == lines


@pytest.mark.usefixtures("spark")
def test_a_schedule_takes_the_rules_of_a_send(plan: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", SETTINGS)
    (calendar,) = (name for name in CALENDARS if name.startswith("2096"))
    orders = "customer,at,days,zone\n1,2096-11-21T22:00:00Z,1,Europe/Berlin\n2,2096-11-21T23:30:00Z,1,Europe/Berlin\n"
    (tmp_path / "customers.csv").write_text(orders)
    rows = [*plan[: plan.index("--due")], "--after", "CAST(at AS TIMESTAMP)", "--zone-column", "zone"]
    counted = [*rows, "--time", "09:00", "--business-days", "days", "--calendar", calendar]
    told = run("schedule", *counted, "--dry-run")  # Thursday; it is Thursday in Berlin, and so Monday: Friday is free
    assert told.splitlines()[-3:-1] == ["2096-11-22 08:00  1", "2096-11-26 08:00  1"]
    told = run(
        "schedule", *rows, "--window", "fri 10:00-11:00; mon-fri 12:00-13:00", "--calendar", calendar, "--dry-run"
    )
    assert told.splitlines()[-2] == "2096-11-22 11:00  2"
    told = run("schedule", *rows, "--quiet", "21:00-08:00", "--holidays", "2096-11-22", "--spread", "10s", "--dry-run")
    assert told.splitlines()[-2] == "2096-11-23 07:00  2"
    with pytest.raises(CommandError, match=r"^stored: 'note:1': calendar='XX' is not in CALENDARS: there is: 2026"):
        run("schedule", *rows, "--window", "mon-fri 09:00-18:00", "--calendar", "XX")
    with pytest.raises(CommandError, match=r"^stored: business_days leads to a day, and not to a time: give time, too"):
        run("schedule", *rows, "--business-days", "days")


@pytest.mark.usefixtures("spark")
def test_what_can_not_be_done_is_told_in_a_line(plan: list[str]) -> None:
    with pytest.raises(CommandError, match=r"^stored: There is no column 'name': there is: customer, on, zone\.$"):
        run("schedule", *plan, "--data", "name")
    with pytest.raises(CommandError, match="nowhere") as failure:
        run("schedule", *plan[:4], "--from", "/nowhere", *plan[6:])
    assert "Traceback" not in str(failure.value)
    with pytest.raises(CommandError, match=r"^stored: Which rows\? Give --from, where the csv is\.$"):
        run("schedule", *plan[:4], *plan[6:])
    with pytest.raises(CommandError, match=r"^stored: \[PARSE_SYNTAX_ERROR\] "):
        run("schedule", *plan, "--where", "customer =")
    jdbc = ["--format", "jdbc", "--read-option", "url=jdbc:other:", "--read-option", "dbtable=t"]
    with pytest.raises(CommandError, match=r"^stored: Spark has no driver for this url of JDBC: "):
        run("schedule", *plan[:4], *plan[6:], *jdbc)
    with pytest.raises(CommandError, match=r"--max-rate: .*0"):
        run("schedule", *plan, "--max-rate", "0")
    with pytest.raises(CommandError, match="DELAYQ has no alias 'stord': did you mean 'stored'"):
        run("campaign", "--using", "stord", "t")


def test_spark_tells_its_own_errors_to_those_who_ask(spark: SparkSession, tmp_path: Path) -> None:
    def level() -> str:
        logging = spark._jvm.org.apache.logging.log4j.LogManager  # type: ignore[union-attr]
        return str(logging.getRootLogger().getLevel())

    empty = ["compact", "--lake", str(tmp_path)]
    run(*empty, "-v", "2")
    assert level() == "ERROR"
    run(*empty)
    assert level() == "FATAL"


@pytest.mark.usefixtures("spark")
def test_a_key_without_a_handler_is_told_before_rows_are_looked_at(settings: Settings, plan: list[str]) -> None:
    settings.DELAYQ = {**settings.DELAYQ, STORED: {**settings.DELAYQ[STORED], "OPTIONS": {"prefix": STORED}}}
    for last in ([], ["--dry-run"]):
        with pytest.raises(CommandError, match=r"^stored: key='note' has no handler in alias 'stored'"):
            run("schedule", *plan[:4], "--from", "/nowhere", *plan[6:], *last)


@pytest.mark.usefixtures("spark")
def test_a_database_that_was_not_migrated_is_told_in_a_line_without_its_password(tmp_path: Path) -> None:
    fail(STORED, [1])
    using = get_alias(STORED).database
    with connections[using].cursor() as cursor:
        cursor.execute("ALTER TABLE delayq_error RENAME COLUMN fingerprint TO not_yet")
        try:
            with pytest.raises(CommandError) as failure:
                run("archive", "--using", STORED, "--lake", str(tmp_path), "--before", "0s")
        finally:
            cursor.execute("ALTER TABLE delayq_error RENAME COLUMN not_yet TO fingerprint")
    lacks = r"lacks what the store needs \(column r\.fingerprint does not exist\)"
    expected = rf"stored: Database '{using}' {lacks}: run `manage\.py migrate --database {using}`\."
    assert re.fullmatch(expected, str(failure.value))
    assert PASSWORD not in str(failure.value)
    assert (ErrorMessage.objects.using(using).count(), Lake(str(tmp_path)).files("error")) == (1, [])


def test_rows_come_from_a_database_by_jdbc(spark: SparkSession) -> None:
    url = "jdbc:derby:memory:shop;create=true"  # Spark brings this one
    customers = spark.createDataFrame([(1, "Europe/Berlin"), (2, "Asia/Tokyo")], "customer int, zone string")
    customers.write.format("jdbc").options(url=url, dbtable="customers").save()
    given = [f"url={url}", "dbtable=customers"]
    options = {"format": "jdbc", "source": None, "read_option": given, "where": "customer = 2"}
    assert [tuple(row) for row in rows_of(spark, options).collect()] == [(2, "Asia/Tokyo")]


def test_a_forecast_is_drawn_as_dots_too() -> None:
    drawn = Image.open(BytesIO(png({0: 1, 3 * 3_600_000: 4})))
    quarter, foot = drawn.width // 4, drawn.height - 30
    colors = [drawn.getpixel((hour * quarter + 20, foot)) for hour in range(4)]
    assert colors[0] == colors[3] != colors[1] == colors[2] == (255, 255, 255)
    assert drawn.getpixel((20, 100)) == (255, 255, 255)  # the first bar is a fourth of the last
    assert drawn.getpixel((3 * quarter + 20, 100)) == colors[3]


def test_without_the_extra_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("django_delayq.spark")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ["pyspark", *(name for name in sys.modules if name.startswith("pyspark."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CommandError, match=r"pip install 'django-delayq\[spark\]'"):
        run("campaign", "t")


def test_the_parser_takes_what_people_write(tmp_path: Path) -> None:
    assert window("mon-fri 09:00-18:00; sat 9:00-12:00") == "mon-fri 09:00-18:00; sat 9:00-12:00"
    assert quiet_hours("21:00 - 08:30") == "mon-sun 08:30-21:00"
    assert time_of_day("9:00") == "9:00"
    (tmp_path / "days").write_text("2026-12-25\n2026-12-26\n")
    assert holidays(str(tmp_path / "days")) == holidays("2026-12-26, 2026-12-25")
    assert holidays("2026-12-25") == {date(2026, 12, 25)}
    assert milliseconds("2h") == 7_200_000
    assert instant("2026-11-21T12:00") == datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert instant("2026-11-21T12:00+01:00") == datetime(2026, 11, 21, 11, tzinfo=UTC)
    before = datetime.now(UTC)
    assert before <= instant("1d") + timedelta(days=1) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (window, "late"),
        (window, "mon-fri 09:00"),
        (window, "09:00-18:00"),
        (time_of_day, "9"),
        (quiet_hours, "late"),
        (quiet_hours, "08:00-08:00"),
        (holidays, "christmas"),
        (milliseconds, "soon"),
        (instant, "once"),
        (picture, "forecast.jpg"),
    ],
)
def test_the_parser_says_how_to_write_it(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(ArgumentTypeError, match=text):
        parse(text)
