"""`delayq resolve`: correct due times after a change of the time-zone database."""

from argparse import ArgumentParser
from collections.abc import Collection
from datetime import datetime
from functools import partial

from django.core.management.base import CommandError
from django.db import DatabaseError

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Tables
from django_delayq.core.errors import DelayqError
from django_delayq.core.human_time import check_zone
from django_delayq.management.support.arguments import Options, checked
from django_delayq.management.support.terminal import Write, counted, to_iso
from django_delayq.store import schedules
from django_delayq.store.rules import Correction, look
from django_delayq.support.audit import operator_of_process, record
from django_delayq.support.timestamps import to_epoch_ms

HELP = (
    "Give waiting messages the due times that their local times and windows have in a zone now, after a change of the "
    "time-zone database, and move the next occurrences of schedules that it made wrong. "
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
    with store.database.available(), store.database.telling_what_it_lacks():
        of_schedules, unresolved = _resolve_schedules(store, options, write)
        unresolved += _resolve_messages(store, options, write, of_schedules)
    if unresolved:
        raise CommandError(f"{counted(unresolved, 'rule')} could not be resolved; what has them is where it was.")


def _resolve_messages(store: Tables, options: Options, write: Write, of_schedules: Collection[str]) -> int:
    """Move the messages, except those that their schedules have moved. Return how many could not be resolved."""
    seen = moved = late = left = unresolved = 0
    for found in look(store.database, options["zone"]):
        now_ms = store.database.now_ms()
        corrections = [one for one in found.corrections if one.id not in of_schedules]
        answers = [True] * len(corrections) if options["dry_run"] else _move(store, corrections)
        for one, was_moved in zip(corrections, answers, strict=True):
            is_late = one.new_ms <= now_ms
            moved, late, left = moved + was_moved, late + (was_moved and is_late), left + (not was_moved)
            write(_line(one, is_late=is_late, was_moved=was_moved))
        for id, reason in found.unresolved:
            write(f"{id}: not resolved: {reason}")
        seen, unresolved = seen + found.seen, unresolved + len(found.unresolved)
    write(
        f"{_moved(options)} {moved} of {counted(seen, 'message')} with a rule in {options['zone']}"
        + (f", {late} of them to now because their new time is past" if late else "")
    )
    if left:
        write(f"left {left}: they started, or got another due time, meanwhile")
    return unresolved


def _resolve_schedules(store: Tables, options: Options, write: Write) -> tuple[set[str], int]:
    """Move the next occurrences. Return the ids of the messages, and how many rules could not be resolved."""
    names = schedules.names_in(store.database, options["zone"])
    ids, moved, unresolved = set[str](), list[str](), 0
    for name in names:
        try:
            found = _look_at_schedule(store, name, is_dry_run=options["dry_run"])
        except (DatabaseError, DelayqError):
            raise
        except Exception as error:  # noqa: BLE001 - a calendar is the site's code
            write(f"schedule {name}: not resolved: {str(error) or type(error).__name__}")
            unresolved += 1
            continue
        if found is not None:
            write(_line_of_schedule(found, store.database.now_ms()))
            if found.correction is not None:
                ids.add(found.correction.id)
                moved.append(name)
    if moved and not options["dry_run"]:
        record(operator_of_process(), "resolve", store.database.alias, moved, moved=len(moved))
    if names:
        write(f"{_moved(options)} {len(moved)} of {counted(len(names), 'schedule')} with a rule in {options['zone']}")
    return ids, unresolved


def _look_at_schedule(store: Tables, name: str, *, is_dry_run: bool) -> schedules.Moved | None:
    if is_dry_run:
        return schedules.look_at(store.database, name)
    return store.change_schedules(partial(schedules.correct, name=name))


def _line_of_schedule(found: schedules.Moved, now_ms: int) -> str:
    line = f"schedule {found.name}: {_iso(found.old)} -> {_iso(found.new)}"
    if found.correction is None:
        return f"{line}: left, because no message waits for the old time any more"
    return f"{line}, which is past: due now" if found.correction.new_ms <= now_ms else line


def _iso(at: datetime) -> str:
    return to_iso(to_epoch_ms(at)) or str(at)


def _moved(options: Options) -> str:
    return "would move" if options["dry_run"] else "moved"


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
