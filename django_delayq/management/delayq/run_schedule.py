"""`delayq run-schedule`: put a message of a schedule that is due now."""

from argparse import ArgumentParser

from django_delayq.api.schedules import run_delay_schedule
from django_delayq.management.support.arguments import Options
from django_delayq.management.support.schedules import add_name
from django_delayq.management.support.terminal import Write
from django_delayq.support.audit import operator_of_process, record

HELP = "Put a message of a schedule that is due now. The rule goes on as before, and a pause stays."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument for the name."""
    add_name(parser)


def run(options: Options, write: Write) -> None:
    """Put the message, and write its id. Raises `DelayqError` if there is no such schedule."""
    id = run_delay_schedule(options["name"], using=options["using"])
    record(operator_of_process(), "run_schedule", options["using"], [id])
    write(f"put {id}")
