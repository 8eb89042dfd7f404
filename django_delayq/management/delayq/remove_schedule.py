"""`delayq remove-schedule`: remove schedules."""

from argparse import ArgumentParser

from django_delayq.api.schedules import get_delay_schedule, store_of
from django_delayq.brokers import get_backend
from django_delayq.management.support.arguments import Options, add_no_input
from django_delayq.management.support.schedules import add_name, change_named
from django_delayq.management.support.terminal import Write, confirm, counted
from django_delayq.models import Schedule
from django_delayq.store import schedules

HELP = "Remove schedules, and cancel what waits of them. Asks first. Exit 1 when one does not exist."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument for the names, and `--no-input`."""
    add_name(parser, "+")
    add_no_input(parser)


def run(options: Options, write: Write) -> None:
    """Remove what was named, after asking. Raises `CommandError` if one does not exist."""
    store_of(get_backend(options["using"]))
    infos = [get_delay_schedule(name, using=options["using"]) for name in dict.fromkeys(options["names"])]
    found = [info for info in infos if info is not None]
    if found and options["interactive"]:
        confirm(f"Remove {counted(len(found), 'schedule')}?")
    for info in found:
        if info.origin == Schedule.Origin.CODE and info.gone_at is None:
            write(f"{info.name} is in the code: it comes back when a worker starts, so pause it, or remove its every=")
    change_named(options, "remove_schedule", schedules.remove, "removed", write, lambda info: "it was written again")
