"""`delayq cancel`: stop waiting messages."""

from argparse import ArgumentParser

from django_delayq.brokers import get_backend
from django_delayq.management.support.arguments import Options
from django_delayq.management.support.by_id import add_ids, move_named
from django_delayq.management.support.terminal import Write

HELP = "Stop waiting messages, so that they never start. Exit 1 when one was not waiting."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument for the ids."""
    add_ids(parser, required=True)


def run(options: Options, write: Write) -> None:
    """Cancel the named messages. Raises `CommandError` if some were not waiting."""
    backend = get_backend(options["using"])
    move_named(backend, "cancel", backend.queue.cancel, options["ids"], "cancelled", write)
