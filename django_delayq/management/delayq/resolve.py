"""`delayq resolve`: correct due times after a change of the time-zone database."""

from argparse import ArgumentParser
from collections.abc import Collection
from functools import partial

from django.core.management.base import CommandError

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Tables
from django_delayq.core.human_time import check_zone
from django_delayq.core.occurrences import occurrence_id
from django_delayq.management.support.arguments import Options, checked
from django_delayq.management.support.terminal import Write, counted, to_iso
from django_delayq.store.rules import Correction, look
from django_delayq.store.schedules import misplaced, restart
from django_delayq.support.audit import operator_of_process, record
from django_delayq.support.timestamps import to_epoch_ms

HELP = (
    "Give waiting messages the due times that their local times and windows have in a zone now, after a change of the "
    "time-zone database, and put the next occurrences of schedules anew that it made wrong. "
    "Exit 1 when a rule could not be resolved."
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
    with store.database.available():
        put_anew = _resolve_schedules(store, options, write)
        _resolve_messages(store, options, write, put_anew)


def _resolve_messages(store: Tables, options: Options, write: Write, put_anew: Collection[str]) -> None:
    """Move the messages, except those that their schedules put anew."""
    seen = moved = late = left = unresolved = 0
    for found in look(store.database, options["zone"]):
        now_ms = store.database.now_ms()
        corrections = [one for one in found.corrections if one.id not in put_anew]
        answers = [True] * len(corrections) if options["dry_run"] else _move(store, corrections)
        for one, was_moved in zip(corrections, answers, strict=True):
            is_late = one.new_ms <= now_ms
            moved, late, left = moved + was_moved, late + (was_moved and is_late), left + (not was_moved)
            write(_line(one, is_late=is_late, was_moved=was_moved))
        for id, reason in found.unresolved:
            write(f"{id}: not resolved: {reason}")
        seen, unresolved = seen + found.seen, unresolved + len(found.unresolved)
    write(
        f"{'would move' if options['dry_run'] else 'moved'} {moved} of {counted(seen, 'message')} with a rule in "
        f"{options['zone']}" + (f", {late} of them to now because their new time is past" if late else "")
    )
    if left:
        write(f"left {left}: they started, or got another due time, meanwhile")
    if unresolved:
        raise CommandError(f"{counted(unresolved, 'rule')} could not be resolved; these messages are where they were.")


def _resolve_schedules(store: Tables, options: Options, write: Write) -> set[str]:
    """Put the next occurrences anew, and return the ids of those that waited."""
    found = misplaced(store.database, options["zone"])
    moved = {one.name for one in found}
    if found and not options["dry_run"]:
        moved = set(store.change_schedules(partial(restart, names=list(moved))))
        record(operator_of_process(), "resolve", store.database.alias, sorted(moved), moved=len(moved))
    for name, old, new in found:
        then = "none" if new is None else to_iso(to_epoch_ms(new))
        write(f"schedule {name}: {to_iso(to_epoch_ms(old))} -> {then}" + ("" if name in moved else ": left"))
    return {occurrence_id(one.name, one.old) for one in found}


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
    return f"{line}, which is past: due now" if is_late else line
