"""Schedule a month of departures, run their messages, archive and report them, and compare all with the file."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.spark_demo.settings"

import django
from django.core.management import CommandError, call_command

from django_delayq.brokers.redis.client import embedded
from example_project.spark_demo.settings import DEPARTURES, LAKE, REDIS_DIR, VAR

PLAN = [
    *(
        "--from",
        "{departures}",
        "--key",
        "departure.announce",
        "--id",
        "carrier,flight,origin,scheduled_departure_local",
    ),
    *("--due", "scheduled_departure_local", "--zone", "America/New_York", "--tag", "january"),
]


def main() -> None:
    """Run all steps. Exit with 1 if the last one finds a difference."""
    django.setup()
    embedded.stop(REDIS_DIR)
    shutil.rmtree(VAR, ignore_errors=True)
    VAR.mkdir(parents=True)
    call_command("migrate", verbosity=0)
    plan = [part.format(departures=DEPARTURES) for part in PLAN]
    send = [*plan, "--data", "carrier,flight,origin,dest"]
    lake = ["--lake", str(LAKE)]
    try:
        _job("What would be sent", "schedule", *send, "--dry-run", "--chart", str(VAR / "forecast.svg"))
        _job("Sent. The month is over, so all of it is due", "schedule", *send)
        _job("Sent again: nothing twice", "schedule", *send)
        _told("A worker runs it")
        subprocess.run([sys.executable, "-m", "django", "run_delayq", "--drain"], check=True)
        _job("How far it has come", "campaign", "january")
        _job("What has ended moves into the lake", "archive", *lake, "--before", "0s")
        _job("How late it was", "report", *lake, "--out", str(VAR / "report"), "--html", str(_page()), "--admin")
        _job("The file against the messages", "reconcile", *plan, *lake)
    finally:
        embedded.stop(REDIS_DIR)
    _told(f"Zero differences. Look at {_page()} and {VAR / 'forecast.svg'}.")


def _page() -> str:
    return str(VAR / "report.html")


def _job(what: str, *arguments: str) -> None:
    _told(what)
    call_command("delayq_spark", *_with_master(arguments))


def _with_master(arguments: Sequence[str]) -> list[str]:
    return [*arguments, "--master", "local[2]"]


def _told(what: str) -> None:
    sys.stdout.write(f"\n== {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except CommandError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.returncode)
    except KeyboardInterrupt:
        sys.stderr.write("The demo was stopped.\n")
        sys.exit(130)
