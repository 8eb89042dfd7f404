"""Moves by id: cancel, reschedule, purge. They act in the caller's transaction, and need no broker."""

from collections.abc import Collection, Sequence
from functools import partial

from django_delayq.brokers.base import Alarm
from django_delayq.store import moves
from django_delayq.store.database import Database, Row, Sql, marks
from django_delayq.store.moves import count
from django_delayq.store.rows import FREE
from django_delayq.store.statements import statements


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
    where = Sql(
        f"r.alias = %s AND r.message_id IN ({marks(len(ids))}) AND {FREE}",
        [database.alias, *sorted(ids)],
    )
    returning = f'id, message_id, queue, "key", due_at - {dialect.now}'
    changed = statements(database).change(database, changes, where, returning)
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
    rows = database.rows(
        f"SELECT r.id, r.message_id FROM delayq_error r WHERE r.alias = %s AND r.message_id IN ({marks(len(ids))})"
        f" ORDER BY r.message_id, r.id{database.dialect.lock}",
        [database.alias, *ids],
    )
    _delete(database, "delayq_error", [pk for pk, _ in rows])
    return {id for _, id in rows}


def _lock_waiting(database: Database, ids: Sequence[str]) -> list[Row]:
    if not ids:
        return []
    return database.rows(
        f"SELECT r.id, r.message_id FROM delayq_ready r WHERE r.alias = %s AND r.message_id IN ({marks(len(ids))})"
        f" AND {FREE} ORDER BY r.message_id{database.dialect.lock}",
        [database.alias, *ids],
    )


def _delete(database: Database, table: str, pks: Sequence[int]) -> None:
    if pks:
        database.changed(f"DELETE FROM {table} WHERE id IN ({marks(len(pks))})", list(pks))
        count(database, "purged", len(pks))
