"""Moves by id: cancel, reschedule, purge, rescue. They act in the caller's transaction, and need no broker."""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from django_delayq.brokers.base import Alarm, pages
from django_delayq.core.history import add
from django_delayq.store.database import Database, Row, Sql
from django_delayq.store.sql import moves
from django_delayq.store.sql.moves import PAGE, count
from django_delayq.store.sql.rows import SHARED, WAITING, buried_attempt, shared_with
from django_delayq.store.sql.statements import statements
from django_delayq.store.sql.values import LongText


def cancel(database: Database, ids: Sequence[str]) -> set[str]:
    """Move waiting rows from ready to finish, with the outcome cancelled. Returns the ids that waited."""
    return database.transaction(partial(_cancel, database, ids))


def purge(database: Database, ids: Sequence[str]) -> set[str]:
    """Remove waiting rows for good, and count them. Returns the ids that waited."""
    return database.transaction(partial(_purge, database, ids))


def purge_failed(database: Database, ids: Sequence[str]) -> set[str]:
    """Remove every buried row of the ids, and count it."""
    return database.transaction(partial(_purge_failed, database, ids))


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
        f"expires_at = r.expires_at - r.scheduled_at + {due}, scheduled_at = {due}, due_at = {due}",
        [parameter, parameter, parameter],
    )
    waiting = database.under_ids(ids, WAITING, dialect.lock)
    returning = f'id, message_id, queue, "key", due_at - {dialect.now}{database.notice}'
    changed = statements(database).change(database, changes, waiting, returning)
    alarms = [Alarm(queue, key, str(pk), max(wait_ms, 0)) for pk, _, queue, key, wait_ms, *_ in changed]
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


def _purge_failed(database: Database, ids: Sequence[str]) -> set[str]:
    if not ids:
        return set()
    buried = database.under_ids(ids, lock=database.dialect.lock, table="delayq_error")
    rows = database.rows(f"SELECT r.id, r.message_id FROM {buried.text}", buried.parameters)
    _delete(database, "delayq_error", [pk for pk, _ in rows])
    return {id for _, id in rows}


def _lock_waiting(database: Database, ids: Sequence[str]) -> list[Row]:
    if not ids:
        return []
    waiting = database.under_ids(ids, WAITING, database.dialect.lock)
    return database.rows(f"SELECT r.id, r.message_id FROM {waiting.text}", waiting.parameters)


def _delete(database: Database, table: str, pks: Sequence[int]) -> None:
    if pks:
        of_pks = database.among("id", pks)
        database.changed(f"DELETE FROM {table} WHERE {of_pks.text}", of_pks.parameters)
        count(database, "purged", len(pks))


_HELD = {"pk": int, "past": LongText}


def rescue(database: Database, ids: Sequence[str]) -> tuple[set[str], list[Alarm]]:
    """Move failed messages back to ready, due now, with their counts reset.

    Of several failed rows under one id, the last is rescued. An id that waits or runs again is left alone. Rows are
    locked in the order of ids, so that two rescues can't deadlock. Return the ids that were rescued, and their alarms.
    """
    rows = [
        row for page in pages(sorted(set(ids)), PAGE) for row in database.transaction(partial(_rescue, database, page))
    ]
    return {id for _, id, *_ in rows}, [Alarm(queue, key, str(pk)) for pk, _, queue, key, *_ in rows]


def _rescue(database: Database, ids: Sequence[str]) -> list[Row]:
    newest = _newest(database, ids)
    pasts = [_with_past(*row) for row in _lock(database, newest)] if newest else []
    return _move(database, pasts) if pasts else []


def _newest(database: Database, ids: Sequence[str]) -> list[int]:
    """Return the primary key of the last row of each id.

    They are compared here, because databases find no good index for it.
    """
    found = database.under_ids(ids, table="delayq_error")
    rows = database.rows(f"SELECT r.message_id, r.ended_at, r.id FROM {found.text}", found.parameters)
    return list({id: pk for id, _, pk in sorted(rows)}.values())


def _lock(database: Database, pks: Sequence[int]) -> list[Row]:
    of_pks = database.among("r.id", pks)
    return database.rows(
        "SELECT r.id, r.failures, r.started_at, r.ended_at, r.worker, r.error, r.detail, r.history FROM delayq_error r"
        f" WHERE {of_pks.text} ORDER BY r.message_id{database.dialect.lock}",
        of_pks.parameters,
    )


def _with_past(pk: int, *buried: Any) -> tuple[int, str]:
    """Return the pk of a row, and its history with the attempt that buried it."""
    *attempt, history = buried
    return pk, add(history, buried_attempt(*attempt))


def _move(database: Database, pasts: Sequence[tuple[int, str]]) -> list[Row]:
    """Move the locked rows whose ids are free. Returns their pk, id, queue and key."""
    now = database.dialect.now
    selected = shared_with(
        due_at=now,
        scheduled_at=now,
        expires_at=f"expires_at - scheduled_at + {now}",
        failures="0",
        crashes="0",
        error="''",
        worker="''",
        started_at="NULL",
        history="past",
    )
    held = database.joined(database.given("held", _HELD, pasts), Sql("r.id = held.pk"), table="delayq_error")
    database.changed(
        f"INSERT INTO delayq_ready (id, {SHARED}) SELECT id, {selected}"
        f" FROM {held.text} WHERE r.alias = %s ORDER BY r.message_id {database.dialect.unless_there}",
        [*held.parameters, database.alias],
    )
    found = database.among("r.id", [pk for pk, _ in pasts])
    rows = database.rows(
        f"SELECT r.id, r.message_id, r.queue, r.key{database.notice} FROM delayq_ready r WHERE {found.text}",
        found.parameters,
    )
    if rows:
        moved = database.among("id", [pk for pk, *_ in rows])
        database.changed(f"DELETE FROM delayq_error WHERE {moved.text}", moved.parameters)
    return rows
