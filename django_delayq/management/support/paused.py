"""QUEUE and `--key`, the arguments that say what to pause or resume."""

from argparse import ArgumentParser
from functools import partial

from django.core.management.base import CommandError

from django_delayq.management.support.arguments import USAGE, Options, checked
from django_delayq.support.validation import check_name, check_queue


def add_queue_and_key(parser: ArgumentParser) -> None:
    """Add the arguments `[QUEUE]` and `--key KEY`."""
    parser.add_argument("queue", nargs="?", type=checked(check_queue), metavar="QUEUE", help="The queue.")
    parser.add_argument(
        "--key",
        type=checked(partial(check_name, kind="key")),
        metavar="KEY",
        help="The execute key, in every queue; with QUEUE, in that queue.",
    )


def queue_and_key(options: Options) -> tuple[str | None, str | None]:
    """Return the queue and the key, None for one that was not given. Raises `CommandError` if neither was."""
    queue, key = options["queue"], options["key"]
    if queue is None and key is None:
        raise CommandError("Say which: QUEUE, or --key KEY for every queue, or both.", returncode=USAGE)
    return queue, key
