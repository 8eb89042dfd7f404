"""`delayq run-now`: make waiting messages due now."""

from argparse import ArgumentParser
from functools import partial

from django_delayq.brokers import get_backend
from django_delayq.management.support.arguments import Options
from django_delayq.management.support.search import acting, add_action, add_choice, move_chosen
from django_delayq.management.support.terminal import Write

HELP = "Make waiting messages due now. Exit 1 when one that was named was not waiting."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the ids, the search, `--action`, and `--no-input`."""
    add_choice(parser)
    add_action(parser)


def run(options: Options, write: Write) -> None:
    """Make what was chosen due now. Raises `CommandError` if a named message was not waiting."""
    backend = get_backend(options["using"])
    move = partial(backend.queue.reschedule, **acting(backend, options))  # by default to now
    move_chosen(backend, "run_now", move, options, "made due", write)
