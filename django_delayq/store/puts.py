"""send: rows in, in the caller's transaction. The due time is the database's clock plus the delay."""

from collections.abc import Sequence
from typing import Any

from django_delayq.brokers.base import Alarm, OnConflict, Placed, Put
from django_delayq.store.database import Database, Row, Sql
from django_delayq.store.dialects import Dialect
from django_delayq.store.rows import BARRED, FREE, UNLEASED
from django_delayq.store.statements import statements

TRIES = 5
"""How often a send looks again for an id that was there and is gone: each time another ended it meanwhile."""


def put(database: Database, puts: Sequence[Put], on_conflict: OnConflict) -> tuple[list[Placed], list[Alarm]]:
    """Insert messages, and do what `on_conflict` says for ids that are there. Gives alarms for what was placed."""
    placed: dict[int, Placed] = {}
    alarms: list[Alarm] = []
    todo = list(range(len(puts)))
    for _ in range(TRIES):
        todo = _insert(database, puts, todo, placed, alarms)
        todo = [i for i in todo if not _settle_conflict(database, puts[i], i, on_conflict, placed, alarms)]
        if not todo:
            break
    for i in todo:  # it comes and goes faster than we look: as good as a message that was there
        placed[i] = Placed(puts[i].id, 0, created=False)
    return [placed[i] for i in range(len(puts))], alarms


def _insert(
    database: Database, puts: Sequence[Put], todo: list[int], placed: dict[int, Placed], alarms: list[Alarm]
) -> list[int]:
    """Insert what has no conflict. Gives the others."""
    if not todo:
        return []
    by_id = {puts[i].id: i for i in reversed(todo)}  # of two with one id the first counts
    inserted = statements(database).insert(database, [puts[i] for i in by_id.values()])
    found = {by_id[row.id]: row for row in inserted}
    for i, row in found.items():
        placed[i] = Placed(row.id, row.due_ms, created=True)
        header = puts[i].header
        alarms.append(Alarm(header.queue, header.key, str(row.pk), max(row.due_ms - row.now_ms, 0)))
    return [i for i in todo if i not in found]


def _settle_conflict(
    database: Database,
    put: Put,
    i: int,
    on_conflict: OnConflict,
    placed: dict[int, Placed],
    alarms: list[Alarm],
) -> bool:
    """Answer for an id that was there. False when it is gone."""
    changed = _change(database, put, on_conflict)
    if changed is not None:
        pk, queue, key, due_ms, wait_ms = changed
        placed[i] = Placed(put.id, due_ms, created=False)
        alarms.append(Alarm(queue, key, str(pk), max(wait_ms, 0)))
        return True
    found = database.rows(
        f"SELECT r.due_at, NOT {FREE.format(now=database.dialect.now)} FROM delayq_ready r"
        " WHERE r.alias = %s AND r.message_id = %s",
        [database.alias, put.id],
    )
    for due_ms, running in found:
        placed[i] = Placed(put.id, due_ms, created=False, running=bool(running))
    return bool(found)


def _change(database: Database, put: Put, on_conflict: OnConflict) -> Row | None:
    """Change the row that waits under the id. Gives pk, queue, key, due time and wait; None where nothing was to do."""
    if on_conflict in ("keep", "raise"):
        return None
    dialect = database.dialect
    due, due_parameter = dialect.due(put.delay_ms, put.at_ms)
    waiting = f"r.alias = %s AND r.message_id = %s AND {FREE.format(now=dialect.now)}"
    where = Sql(waiting, [database.alias, put.id])
    if on_conflict == "replace":
        changes = _replacement(dialect, put, due, due_parameter)
    else:
        changes = Sql(f"expires_at = r.expires_at - r.scheduled_at + {due}, {BARRED}", [due_parameter])
        compared = "<" if on_conflict == "earliest" else ">"
        where = Sql(f"{waiting} AND {due} {compared} r.due_at", [*where.parameters, due_parameter])
    changes = Sql(
        f"{changes.text}, due_at = {due}, scheduled_at = {due}, placed = %s",
        [*changes.parameters, due_parameter, due_parameter, False],
    )
    returning = f'id, queue, "key", due_at, due_at - {dialect.now}'
    changed = statements(database).change(database, changes, where, returning)
    return changed[0] if changed else None


def _replacement(dialect: Dialect, put: Put, due: str, due_parameter: int) -> Sql:
    header = put.header
    text = (
        'queue = %s, "key" = %s, data = %s, tag = %s, trace_id = %s, max_attempts = %s, timeout_ms = %s,'
        " at_most_once = %s, failures = 0, crashes = 0, error = '', history = '[]',"
        f" sent_at = {dialect.now}, {UNLEASED}"
    )
    parameters: list[Any] = [header.queue, header.key, put.body.decode(), header.tag, header.trace_id]
    parameters += [header.max_attempts, header.timeout_ms, header.at_most_once]
    if header.expires_ms is None:
        return Sql(f"{text}, expires_at = NULL", parameters)
    return Sql(f"{text}, expires_at = {due} + %s", [*parameters, due_parameter, header.expires_ms])
