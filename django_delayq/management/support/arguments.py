"""Define the arguments that more than one subcommand takes, and check their values."""

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, _ActionsContainer
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from django.core.management.base import CommandError

from django_delayq.brokers.base import BATCH
from django_delayq.support.timestamps import due_time_ms
from django_delayq.support.validation import check_name, check_queue, short_repr

T = TypeVar("T")
Options = dict[str, Any]

USAGE = 2
"""The exit code of a wrong command line, the same as argparse's."""


def add_json(parser: ArgumentParser) -> None:
    """Add `--json`, for programs that read the output."""
    parser.add_argument(
        "--json", action="store_true", help="Write JSON: instants as ISO 8601 (_at) and epoch ms (_ms)."
    )


def add_count(parser: ArgumentParser) -> None:
    """Add `-n`, the number of messages to show."""
    parser.add_argument(
        "-n",
        "--count",
        type=whole_number(1, BATCH),
        default=10,
        metavar="N",
        help=f"How many, 1 to {BATCH}. Default: %(default)s.",
    )


def add_instant(parser: _ActionsContainer, name: str, help: str, *, required: bool = False) -> None:
    """Add the option `--NAME WHEN`, whose value is in epoch milliseconds, as NAME_ms."""
    parser.add_argument(
        f"--{name}",
        dest=f"{name}_ms",
        type=checked(partial(_instant_ms, option=f"--{name}")),
        required=required,
        metavar="WHEN",
        help=help,
    )


def _instant_ms(text: str, option: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ValueError(
            f"{option}={short_repr(text)} is no instant; write it with its offset from UTC, like "
            "2027-01-15T18:00+01:00."
        )
    return due_time_ms(at)


def add_reason(parser: ArgumentParser, help: str) -> None:
    """Add `--reason`, which a pause must have."""
    parser.add_argument(
        "--reason", required=True, type=checked(partial(check_name, kind="reason")), metavar="TEXT", help=help
    )


def add_no_input(parser: ArgumentParser) -> None:
    """Add `--no-input`, for a subcommand that asks before it acts."""
    parser.add_argument(
        "--no-input", "--noinput", action="store_false", dest="interactive", help="Go on without asking."
    )


def add_djangos_own(subparser: ArgumentParser) -> None:
    """Accept Django's own options after the subcommand too, because everybody writes them there."""
    for name in ("--settings", "--pythonpath"):
        subparser.add_argument(name, default=SUPPRESS, help=SUPPRESS)
    for name in ("--traceback", "--no-color", "--force-color"):
        subparser.add_argument(name, action="store_true", default=SUPPRESS, help=SUPPRESS)
    subparser.add_argument("-v", "--verbosity", type=int, choices=range(4), default=SUPPRESS, help=SUPPRESS)


def checked(check: Callable[[str], T]) -> Callable[[str], T]:
    """Return a type for argparse that converts with `check`. A `ValueError` of `check` becomes argparse's error."""

    def parse(text: str) -> T:
        try:
            return check(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from error

    return parse


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a type for argparse: a whole number from `least` to `most`, or `least` or more if `most` is None."""
    wanted = f"{least} or more" if most is None else f"{least} to {most}"

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise ArgumentTypeError(f"{text[:40]!r} is no such number; give {wanted}")
        return number

    return parse


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
    """Return the queue and the key, with None for the one that was not given. Raises `CommandError` if neither was."""
    queue, key = options["queue"], options["key"]
    if queue is None and key is None:
        raise CommandError("Say which: QUEUE, or --key KEY for every queue, or both.", returncode=USAGE)
    return queue, key
