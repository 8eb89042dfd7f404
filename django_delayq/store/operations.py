"""Moves by id: cancel, reschedule, purge. They act in the caller's transaction, and need no broker."""

from collections.abc import Collection, Sequence
from functools import partial

from django_delayq.brokers.base import Alarm
from django_delayq.store.database import Database, Row, Sql
from django_delayq.store.sql import moves
from django_delayq.store.sql.moves import count
from django_delayq.store.sql.rows import FREE
from django_delayq.store.sql.statements import statements


def cancel(database: Database, ids: Sequence[str]) -> set[str]:
    """Move waiting rows from ready to finish, with the outcome cancelled. Returns the ids that waited."""
    return database.transaction(partial(_cancel, database, ids))


def purge(database: Database, ids: Sequence[str]) -> set[str]:
    """Remove waiting rows for good, and count them. Returns the ids that waited."""
    return database.transaction(partial(_purge, database, ids))


def purge_errors(database: Database, ids: Sequence[str]) -> set[str]:
    """Remove every buried row of the ids, and count it."""
    return database.transaction(partial(_purge_errors, database, ids))


def reschedule(
    database: Database, ids: Sequence[str], delay_ms: int, at_ms: int | None, by_ms: int | None = None
) -> tuple[set[str], list[Alarm]]:
    """Give waiting rows a new due time, and keep their counts. With `by_ms` each is due that much later than before.

    Returns the ids that waited, and alarms for them.
    """
    if not ids:
        return set(), []
    dialect = database.dialect
    due, parameter = dialect.due(delay_ms, at_ms) if by_ms is None else dialect.later(by_ms)
    changes = Sql(
        f"expires_at = r.expires_at - r.scheduled_at + {due}, scheduled_at = {due}, due_at = {due}, placed = %s",
        [parameter, parameter, parameter, False],
    )
    waiting = database.under_ids(ids, FREE, dialect.lock)
    returning = f'id, message_id, queue, "key", due_at - {dialect.now}'
    changed = statements(database).change(database, changes, waiting, returning)
    alarms = [Alarm(queue, key, str(pk), max(wait_ms, 0)) for pk, _, queue, key, wait_ms in changed]
    return {id for _, id, *_ in changed}, alarms


def answers(ids: Sequence[str], found: Collection[str]) -> list[bool]:
    """Return for each id whether it was found; an id that is given twice was found only the first time."""
    left = set(found)
    each_answer = []
    for id in ids:
        each_answer.append(id in left)
        left.discard(id)
    return each_answer


def _cancel(database: Database, ids: Sequence[str]) -> set[str]:
    rows = _lock_waiting(database, ids)
    moves.cancel(database, [pk for pk, _ in rows])
    return {id for _, id in rows}


def _purge(database: Database, ids: Sequence[str]) -> set[str]:
    rows = _lock_waiting(database, ids)
    _delete(database, "delayq_ready", [pk for pk, _ in rows])
    return {id for _, id in rows}


def _purge_errors(database: Database, ids: Sequence[str]) -> set[str]:
    if not ids:
        return set()
    buried = database.under_ids(ids, lock=database.dialect.lock, table="delayq_error")
    rows = database.rows(f"SELECT r.id, r.message_id FROM {buried.text}", buried.parameters)
    _delete(database, "delayq_error", [pk for pk, _ in rows])
    return {id for _, id in rows}


def _lock_waiting(database: Database, ids: Sequence[str]) -> list[Row]:
    if not ids:
        return []
    waiting = database.under_ids(ids, FREE, database.dialect.lock)
    return database.rows(f"SELECT r.id, r.message_id FROM {waiting.text}", waiting.parameters)


def _delete(database: Database, table: str, pks: Sequence[int]) -> None:
    if pks:
        of_pks = database.among("id", pks)
        database.changed(f"DELETE FROM {table} WHERE {of_pks.text}", of_pks.parameters)
        count(database, "purged", len(pks))
