"""Show the admin on what the demo left: the site and a worker, until Ctrl-C."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection

from django_delayq import send_delay_messages
from example_project.demo import report
from example_project.demo.broker import broker_of_demo
from example_project.demo.waiting import NotInTime
from example_project.demo.workers import start_worker
from example_project.shop.delayed import remind_customer
from example_project.shop.models import Order

NAME = PASSWORD = "demo"  # noqa: S105  of a site that only this machine sees
TONIGHT = timedelta(hours=11)
Process = subprocess.Popen[bytes]


def look(address: str) -> int:
    """Serve the site at `address`, with a worker beside it. Return the exit code: 0 if Ctrl-C ended it."""
    if not has_played():
        report.say("There is nothing to look at yet: run `make demo` first.")
        return 1
    report.say(f"The admin is at http://{address}/admin/delayq/: log in as {NAME}, password {PASSWORD}.")
    try:
        with served(address) as site:
            return site.wait()
    except KeyboardInterrupt:
        return 0
    except NotInTime as error:
        report.say(str(error))
        return 1


def has_played() -> bool:
    """Return whether an earlier demo has left its database."""
    return Path(connection.settings_dict["NAME"]).exists()


@contextmanager
def served(address: str) -> Iterator[Process]:
    """Yield the process of the site at `address`, beside a worker, with a user to log in and messages that wait."""
    broker = broker_of_demo()
    broker.start()
    started: list[Process] = []
    try:
        add_superuser()
        leave_reminders()
        started.append(start_worker(settings.VAR / "worker.log"))
        site = [sys.executable, "manage.py", "runserver", "--noreload", address]
        started.append(subprocess.Popen(site))  # noqa: S603
        yield started[-1]
    finally:
        stop(started)
        broker.stop()


def add_superuser() -> None:
    """Add a user who may do everything."""
    if not User.objects.filter(username=NAME).exists():
        User.objects.create_superuser(NAME, password=PASSWORD)


def leave_reminders() -> None:
    """Send a reminder for each order that was never paid, one after another until tonight, so that something waits."""
    unpaid = list(Order.objects.exclude(state=Order.State.PAID).values_list("pk", flat=True))
    send_delay_messages(
        remind_customer.prepare(
            pk, delay=TONIGHT * (number / len(unpaid)), id=f"order:{pk}:remind:tonight", tag=f"order:{pk}"
        )
        for number, pk in enumerate(unpaid, start=1)
    )


def stop(started: Sequence[Process]) -> None:
    """Stop the processes, so that none is left behind. Those of a terminal have had its Ctrl-C too."""
    for process in started:
        process.terminate()
    for process in started:
        process.wait()
