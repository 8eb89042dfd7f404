"""`delayq cancel`: stop waiting messages, and with `--running` those that run."""

from argparse import ArgumentParser
from functools import partial

from django_delayq.brokers import get_backend
from django_delayq.management.support.arguments import Options
from django_delayq.management.support.search import acting, add_action, add_choice, move_chosen
from django_delayq.management.support.terminal import Write
from django_delayq.support.audit import operator_of_process

HELP = "Stop waiting messages, so that they never start. Exit 1 when one that was named was not waiting."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the ids, the search, `--action`, `--running` and `--no-input`."""
    add_choice(parser)
    add_action(parser)
    parser.add_argument(
        "--running", action="store_true", help="Also ask messages that run to end, with your name as who asks."
    )


def run(options: Options, write: Write) -> None:
    """Cancel what was chosen. Raises `CommandError` if a named message was not waiting."""
    backend = get_backend(options["using"])
    cancel = partial(backend.queue.cancel, **acting(backend, options))
    if not options["running"]:
        move_chosen(backend, "cancel", cancel, options, "cancelled", write)
        return
    cancel = partial(cancel, running_by=operator_of_process().who)
    move_chosen(backend, "cancel", cancel, options, "cancelled or asked to end", write, running=True)
