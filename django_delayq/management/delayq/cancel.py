"""`delayq cancel`: stop waiting messages."""

from argparse import ArgumentParser

from django_delayq.brokers import get_backend
from django_delayq.management.support.arguments import Options
from django_delayq.management.support.search import add_choice, move_chosen
from django_delayq.management.support.terminal import Write

HELP = "Stop waiting messages, so that they never start. Exit 1 when one that was named was not waiting."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the ids, the search, and `--no-input`."""
    add_choice(parser)


def run(options: Options, write: Write) -> None:
    """Cancel what was chosen. Raises `CommandError` if a named message was not waiting."""
    backend = get_backend(options["using"])
    move_chosen(backend, "cancel", backend.queue.cancel, options, "cancelled", write)
