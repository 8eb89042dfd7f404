"""`delayq prune`: remove messages that ended long ago from the tables of a store."""

from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial

from django.core.management.base import CommandError

from django_delayq.brokers import get_backend
from django_delayq.management.support.arguments import USAGE, Options, add_no_input, checked
from django_delayq.management.support.terminal import Write, confirm, counted, to_iso
from django_delayq.store.database import Database
from django_delayq.store.operations import prunable, prune_errors, prune_finished
from django_delayq.support.audit import operator_of_process, record
from django_delayq.support.units import to_ms

HELP = "Remove what ended long ago from the tables of a store, and count it. Asks first."


def add_arguments(parser: ArgumentParser) -> None:
    """Add `--finished-before`, `--errors-before` and `--no-input`."""
    for name, what in (("finished", "finished or was cancelled"), ("errors", "failed")):
        option = f"--{name}-before"
        parser.add_argument(
            option,
            dest=f"{name}_before_ms",
            type=checked(partial(to_ms, name=option, least_ms=1)),
            metavar="LENGTH",
            help=f"What {what} longer ago than this, such as 30d.",
        )
    add_no_input(parser)


def run(options: Options, write: Write) -> None:
    """Prune after asking. Raises `CommandError` if no age was given, or the alias has no store."""
    finished_ms, errors_ms = options["finished_before_ms"], options["errors_before_ms"]
    if finished_ms is None and errors_ms is None:
        raise CommandError("Say what to prune: --finished-before 30d, or --errors-before 90d.", returncode=USAGE)
    store = get_backend(options["using"]).store
    if store is None:
        raise CommandError(
            f"{options['using']!r} has no store, so nothing of it is in tables; "
            "a broker drops its errors by itself, see error_retention."
        )
    with store.database.available():
        if options["interactive"]:
            _ask(store.database, finished_ms, errors_ms)
        finished = _prune_all(store.database, "finished", prune_finished, finished_ms)
        errors = _prune_all(store.database, "failed", prune_errors, errors_ms)
    write(f"pruned {finished} finished or cancelled, {errors} failed")


def _ask(database: Database, finished_ms: int | None, errors_ms: int | None) -> None:
    now_ms = database.now_ms()
    finished = 0 if finished_ms is None else prunable(database, "delayq_finish", now_ms - finished_ms)
    errors = 0 if errors_ms is None else prunable(database, "delayq_error", now_ms - errors_ms)
    if finished or errors:
        confirm(f"Prune {counted(finished, 'finished or cancelled message')} and {errors} failed for good?")


def _prune_all(database: Database, of: str, prune: Callable[[Database, int], int], length_ms: int | None) -> int:
    if length_ms is None:
        return 0
    before_ms = database.now_ms() - length_ms
    pruned = 0
    try:
        while batch := prune(database, before_ms):
            pruned += batch
    finally:
        operator = operator_of_process()
        record(operator, "prune", database.alias, of=of, before=to_iso(before_ms), removed=pruned)
    return pruned
