"""`delayq peek`: show the next waiting messages of a queue."""

from argparse import ArgumentParser
from itertools import chain

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend, Info
from django_delayq.core.lanes import lanes_of
from django_delayq.management.support.arguments import Options, add_count, add_json, checked
from django_delayq.management.support.shapes import data_text, message_shape, write_json
from django_delayq.management.support.terminal import Write, to_iso, write_table
from django_delayq.support.validation import check_queue

HELP = "The next N messages of a queue with their data, in due order. Removes nothing."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the queue, `-n` and `--json`."""
    parser.add_argument("queue", type=checked(check_queue), metavar="QUEUE", help="The queue to look at.")
    add_count(parser)
    add_json(parser)


def run(options: Options, write: Write) -> None:
    """Write the next messages of the queue."""
    found = _next(get_backend(options["using"]), options["queue"], options["count"])
    if options["json"]:
        write_json(write, [message_shape(info) for info in found])
        return
    write_table(
        write,
        ("DUE", "STATE", "KEY", "ID", "DATA"),
        [
            (to_iso(each.due_ms) or "-", str(each.state), each.header.key, each.id, data_text(each.body))
            for each in found
        ],
    )
    if not found:
        write(f"Nothing waits in queue {options['queue']!r}.")


def _next(backend: Backend, queue: str, count: int) -> list[Info]:
    """Return the next messages of a queue, whatever their priority."""
    lanes = lanes_of(queue, backend.presence.lanes())
    found = chain.from_iterable(backend.queue.peek(lane, count) for lane in lanes)
    return sorted(found, key=lambda info: info.due_ms)[:count]
