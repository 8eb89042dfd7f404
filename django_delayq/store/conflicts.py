"""Sends of ids that are there already: do what `on_conflict` says to many at once."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from django_delayq.brokers.base import Alarm, Enqueued, NewMessage, OnConflict
from django_delayq.store.database import Database
from django_delayq.store.sql.dialects import Dialect
from django_delayq.store.sql.rows import FREE
from django_delayq.store.sql.statements import statements
from django_delayq.store.sql.values import LongText

_TIMES = {"of_id": str, "delay_ms": int, "at_ms": int}
_NEW = _TIMES | {
    "new_queue": str,
    "new_key": str,
    "new_data": LongText,
    "new_tag": str,
    "new_trace_id": str,
    "expires_ms": int,
    "new_max_attempts": int,
    "new_timeout_ms": int,
    "once": int,
}


def settle_conflicts(
    database: Database, puts: Sequence[NewMessage], on_conflict: OnConflict
) -> tuple[dict[str, Enqueued], list[Alarm]]:
    """Return the answer, by id, for messages whose ids were there already, and the alarms to put.

    The ids differ. Those that have gone meanwhile are left out.
    """
    changed = _change(database, puts, on_conflict)
    alarms = [Alarm(queue, key, str(pk), max(wait_ms, 0)) for _, pk, queue, key, _, wait_ms in changed]
    placed = {id: Enqueued(id, due_ms, created=False) for id, _, _, _, due_ms, _ in changed}
    return placed | _look(database, [put.id for put in puts if put.id not in placed]), alarms


def _look(database: Database, ids: Sequence[str]) -> dict[str, Enqueued]:
    if not ids:
        return {}
    found = database.under_ids(ids, lock=database.dialect.newest)
    rows = database.rows(f"SELECT r.message_id, r.due_at, NOT ({FREE}) FROM {found.text}", found.parameters)
    return {id: Enqueued(id, due_ms, created=False, running=bool(running)) for id, due_ms, running in rows}


def _change(database: Database, puts: Sequence[NewMessage], on_conflict: OnConflict) -> list[tuple[Any, ...]]:
    """Change the rows that wait under the ids. Returns id, pk, queue, key, due time and wait of those changed."""
    if on_conflict in ("keep", "raise"):
        return []
    dialect = database.dialect
    due = _due(dialect)
    where = FREE
    in_order = sorted(puts, key=attrgetter("id"))
    if on_conflict == "replace":
        columns, rows, changes = _NEW, [_new(put) for put in in_order], _replacement(dialect, due)
    else:
        columns, rows = _TIMES, [(put.id, put.delay_ms, put.at_ms) for put in in_order]
        changes = f"expires_at = r.expires_at - r.scheduled_at + {due}"
        where += f" AND {due} {'<' if on_conflict == 'earliest' else '>'} r.due_at"
    return statements(database).change_given(
        database,
        f"{changes}, due_at = {due}, scheduled_at = {due}, placed = (1 = 0)",
        database.given("given", columns, rows),
        where,
        f'message_id, id, queue, "key", due_at, due_at - {dialect.now}',
    )


def _due(dialect: Dialect) -> str:
    """Return the due time by the clock of the statement."""
    at = f"{dialect.greatest}({dialect.now}, given.at_ms)"
    return f"(CASE WHEN given.at_ms IS NULL THEN {dialect.now_up} + given.delay_ms ELSE {at} END)"


def _replacement(dialect: Dialect, due: str) -> str:
    return (
        'queue = given.new_queue, "key" = given.new_key, data = given.new_data, tag = given.new_tag,'
        " trace_id = given.new_trace_id, max_attempts = given.new_max_attempts, timeout_ms = given.new_timeout_ms,"
        " at_most_once = (given.once = 1), failures = 0, crashes = 0, error = '', history = '[]',"
        f" sent_at = {dialect.now}, expires_at = {due} + given.expires_ms"
    )


def _new(put: NewMessage) -> tuple[Any, ...]:
    """Return the columns `_NEW` of a message."""
    header = put.header
    times = put.id, put.delay_ms, put.at_ms
    names = header.queue, header.key, put.body.decode(), header.tag, header.trace_id
    return *times, *names, header.expires_ms, header.max_attempts, header.timeout_ms, int(header.at_most_once)
