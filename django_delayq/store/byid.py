"""Moves by id: cancel, reschedule, rescue, purge. They act in the caller's transaction, and need no broker."""

from collections.abc import Collection, Sequence
from functools import partial

from django_delayq.brokers.base import Alarm
from django_delayq.history import add
from django_delayq.store import moves
from django_delayq.store.database import Database, Row, Sql, marks
from django_delayq.store.moves import count
from django_delayq.store.rows import BARRED, FREE, SHARED, buried_attempt, shared_with
from django_delayq.store.statements import statements


def cancel(database: Database, ids: Sequence[str]) -> set[str]:
    """ready -> finish with the outcome cancelled. Gives the ids that waited."""
    return database.transaction(partial(_cancel, database, ids))


def purge(database: Database, ids: Sequence[str]) -> set[str]:
    """Remove waiting rows for good, and count them. Gives the ids that waited."""
    return database.transaction(partial(_purge, database, ids))


def purge_errors(database: Database, ids: Sequence[str]) -> set[str]:
    """Remove all that is buried under the ids, and count it."""
    return database.transaction(partial(_purge_errors, database, ids))


def reschedule(
    database: Database, ids: Sequence[str], delay_ms: int, at_ms: int | None
) -> tuple[set[str], list[Alarm]]:
    """A new due time for waiting rows, counts as they are. Gives the ids that waited, and alarms for them."""
    if not ids:
        return set(), []
    dialect = database.dialect
    due, parameter = dialect.due(delay_ms, at_ms)
    changes = Sql(
        f"expires_at = r.expires_at - r.scheduled_at + {due}, {BARRED}, due_at = {due}, scheduled_at = {due},"
        " placed = %s",
        [parameter, parameter, parameter, False],
    )
    where = Sql(
        f"r.alias = %s AND r.message_id IN ({marks(len(ids))}) AND {FREE.format(now=dialect.now)}",
        [database.alias, *sorted(ids)],
    )
    returning = f'id, message_id, queue, "key", due_at - {dialect.now}'
    changed = statements(database).change(database, changes, where, returning)
    alarms = [Alarm(queue, key, str(pk), max(wait_ms, 0)) for pk, _, queue, key, wait_ms in changed]
    return {id for _, id, *_ in changed}, alarms


def rescue(database: Database, ids: Sequence[str]) -> tuple[set[str], list[Alarm]]:
    """error -> ready, counts anew, due now. Of an id that was buried several times the last one is rescued."""
    rescued: set[str] = set()
    alarms: list[Alarm] = []
    for id in dict.fromkeys(ids):
        row = database.transaction(partial(_rescue, database, id))
        if row is not None:
            rescued.add(id)
            pk, queue, key = row
            alarms.append(Alarm(queue, key, str(pk)))
    return rescued, alarms


def answers(ids: Sequence[str], found: Collection[str]) -> list[bool]:
    """True for each id that was found, once."""
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


def _rescue(database: Database, id: str) -> Row | None:
    buried = database.rows(
        "SELECT r.id, r.failures, r.worker, r.started_at, r.ended_at, r.error, r.detail, r.history FROM delayq_error r"
        f" WHERE r.alias = %s AND r.message_id = %s ORDER BY r.ended_at DESC, r.id DESC LIMIT 1{database.dialect.lock}",
        [database.alias, id],
    )
    if not buried:
        return None
    ((pk, failures, worker, started_ms, ended_ms, error, detail, history),) = buried
    last = buried_attempt(failures, started_ms, ended_ms, worker, error, detail)
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
        history="%s",
    )
    database.changed(
        f"INSERT INTO delayq_ready (id, {SHARED}, placed) SELECT id, {selected}, %s FROM delayq_error WHERE id = %s"
        f" {database.dialect.unless_there}",
        [add(history, last), False, pk],
    )
    rows = database.rows("SELECT r.id, r.queue, r.key FROM delayq_ready r WHERE r.id = %s", [pk])
    if not rows:
        return None
    database.changed("DELETE FROM delayq_error WHERE id = %s", [pk])
    return rows[0]


def _lock_waiting(database: Database, ids: Sequence[str]) -> list[Row]:
    if not ids:
        return []
    return database.rows(
        f"SELECT r.id, r.message_id FROM delayq_ready r WHERE r.alias = %s AND r.message_id IN ({marks(len(ids))})"
        f" AND {FREE.format(now=database.dialect.now)} ORDER BY r.message_id{database.dialect.lock}",
        [database.alias, *ids],
    )


def _delete(database: Database, table: str, pks: Sequence[int]) -> None:
    if pks:
        database.changed(f"DELETE FROM {table} WHERE id IN ({marks(len(pks))})", list(pks))
        count(database, "purged", len(pks))
