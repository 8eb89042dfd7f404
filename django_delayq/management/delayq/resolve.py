"""`delayq resolve`: correct due times after a change of the time-zone database."""

from argparse import ArgumentParser

from django.core.management.base import CommandError

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Tables
from django_delayq.core.human_time import check_zone
from django_delayq.management.support.arguments import Options, checked
from django_delayq.management.support.terminal import Write, counted, to_iso
from django_delayq.store import schedules
from django_delayq.store.rules import Correction, look
from django_delayq.support.audit import operator_of_process, record

HELP = (
    "Give waiting messages, among them the occurrences of schedules, the due times that their local times and windows "
    "have in a zone now, after a change of the time-zone database. Exit 1 when a rule could not be resolved."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add `--zone` and `--dry-run`."""
    parser.add_argument(
        "--zone", required=True, type=checked(check_zone), metavar="ZONE", help="The zone, such as Europe/Rome."
    )
    parser.add_argument("--dry-run", action="store_true", help="Only say what would be moved.")


def run(options: Options, write: Write) -> None:
    """Move the messages, and say which, and from when to when. Raises `CommandError` without a store."""
    store = get_backend(options["using"]).store
    if store is None:
        raise CommandError(f"{options['using']!r} has no store, which alone keeps the rules of due times.")
    with store.database.available(), store.database.telling_what_it_lacks():
        unresolved = _resolve(store, options, write)
        if not options["dry_run"]:
            schedules.look_again(store.database, options["zone"])
    if unresolved:
        raise CommandError(f"{counted(unresolved, 'rule')} could not be resolved; what has them is where it was.")


def _resolve(store: Tables, options: Options, write: Write) -> int:
    """Move the messages, and say which. Return how many could not be resolved."""
    seen = moved = late = left = unresolved = 0
    for found in look(store.database, options["zone"]):
        now_ms = store.database.now_ms()
        answers = [True] * len(found.corrections) if options["dry_run"] else _move(store, found.corrections)
        for one, was_moved in zip(found.corrections, answers, strict=True):
            is_late = one.new_ms <= now_ms
            moved, late, left = moved + was_moved, late + (was_moved and is_late), left + (not was_moved)
            write(_line(one, is_late=is_late, was_moved=was_moved))
        for id, reason in found.unresolved:
            write(f"{id}: not resolved: {reason}")
        seen, unresolved = seen + found.seen, unresolved + len(found.unresolved)
    write(
        f"{'would move' if options['dry_run'] else 'moved'} {moved} of {counted(seen, 'message')} with a rule in "
        f"{options['zone']}" + (f", {late} of them to a time that is past" if late else "")
    )
    if left:
        write(f"left {left}: they started, or got another due time, meanwhile")
    return unresolved


def _move(store: Tables, corrections: list[Correction]) -> list[bool]:
    if not corrections:
        return []
    answers = store.correct(corrections)
    ids = [one.id for one, was_moved in zip(corrections, answers, strict=True) if was_moved]
    record(operator_of_process(), "resolve", store.database.alias, ids, moved=len(ids))
    return answers


def _line(one: Correction, *, is_late: bool, was_moved: bool) -> str:
    line = f"{one.id}: {to_iso(one.old_ms)} -> {to_iso(one.new_ms)}"
    if not was_moved:
        return f"{line}: left"
    return f"{line}, which is past" if is_late else line
