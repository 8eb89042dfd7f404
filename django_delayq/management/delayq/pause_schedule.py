"""`delayq pause-schedule`: let nothing more of schedules be put."""

from argparse import ArgumentParser

from django_delayq.management.support.arguments import Options, add_reason
from django_delayq.management.support.schedules import add_name, change_named
from django_delayq.management.support.terminal import Write
from django_delayq.store import schedules

HELP = "Pause schedules: what waits of them is cancelled, and nothing more is put. Exit 1 when one was not paused."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the names and the reason."""
    add_name(parser, "+")
    add_reason(parser, "Why; shown by schedules and explain.")


def run(options: Options, write: Write) -> None:
    """Pause what was named. Raises `CommandError` if one was paused already, or does not exist."""
    change_named(
        options,
        "pause_schedule",
        schedules.pause,
        "paused",
        write,
        lambda info: f"paused already: {info.reason}",
        reason=options["reason"],
    )
