"""`delayq resume-schedule`: end the pause of schedules."""

from argparse import ArgumentParser

from django_delayq.management.support.arguments import Options
from django_delayq.management.support.schedules import add_name, change_named
from django_delayq.management.support.terminal import Write
from django_delayq.store import schedules

HELP = "End the pause of schedules. What fell due meanwhile is left out. Exit 1 when one was not paused."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument for the names."""
    add_name(parser, "+")


def run(options: Options, write: Write) -> None:
    """Resume what was named. Raises `CommandError` if one was not paused, or does not exist."""
    change_named(options, "resume_schedule", schedules.resume, "resumed", write, lambda info: "it was not paused")
