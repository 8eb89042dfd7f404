"""Options that more than one subcommand takes."""

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django_delayq.brokers.base import BATCH

Options = dict[str, Any]

USAGE = 2
"""The exit code of a wrong command line, as argparse has it."""


def add_json(parser: ArgumentParser) -> None:
    """--json, for what reads."""
    parser.add_argument(
        "--json", action="store_true", help="Write JSON: instants as ISO 8601 (_at) and epoch ms (_ms)."
    )


def add_count(parser: ArgumentParser) -> None:
    """-n, how many to show."""
    parser.add_argument(
        "-n", "--count", type=_count, default=10, metavar="N", help=f"How many, 1 to {BATCH}. Default: %(default)s."
    )


def add_no_input(parser: ArgumentParser) -> None:
    """--no-input, for what asks."""
    parser.add_argument(
        "--no-input", "--noinput", action="store_false", dest="interactive", help="Go on without asking."
    )


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if not 1 <= count <= BATCH:
        raise ArgumentTypeError(f"{text[:40]!r} is no number of messages; give 1 to {BATCH}.")
    return count
