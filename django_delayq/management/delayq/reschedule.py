"""`delayq reschedule`: give waiting messages another due time."""

from argparse import ArgumentParser
from functools import partial

from django_delayq.brokers import get_backend
from django_delayq.management.support.arguments import Options, add_instant, checked
from django_delayq.management.support.search import acting, add_action, add_choice, move_chosen
from django_delayq.management.support.terminal import Write
from django_delayq.support.units import to_ms

HELP = "Give waiting messages another due time. Exit 1 when one that was named was not waiting."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the ids, the search, `--action`, the due time, and `--no-input`."""
    add_choice(parser)
    add_action(parser)
    due = parser.add_mutually_exclusive_group(required=True)
    due.add_argument(
        "--delay",
        dest="delay_ms",
        type=checked(partial(to_ms, name="--delay")),
        default=0,
        metavar="LENGTH",
        help="How long from now, such as 30m or 2h30m; 0 for at once.",
    )
    add_instant(due, "at", "When: ISO 8601 with an offset from UTC.")


def run(options: Options, write: Write) -> None:
    """Reschedule what was chosen. Raises `CommandError` if a named message was not waiting."""
    backend = get_backend(options["using"])
    due = {"delay_ms": options["delay_ms"], "at_ms": options["at_ms"]}
    move = partial(backend.queue.reschedule, **due, **acting(backend, options))
    move_chosen(backend, "reschedule", move, options, "rescheduled", write)
