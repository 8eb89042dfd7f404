"""Send: insert rows, in the caller's transaction. The due time is the database's clock plus the delay.

Ids that are there already are treated as `on_conflict` says, many at once. `insert_new` leaves alone what has
ended, too.
"""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from django_delayq.brokers.base import BATCH, Alarm, Enqueued, NewMessage, OnConflict, pages
from django_delayq.store.database import Database
from django_delayq.store.sql.dialects import Dialect
from django_delayq.store.sql.rows import WAITING
from django_delayq.store.sql.statements import statements
from django_delayq.store.sql.values import LongText

TRIES = 5
"""How often a send looks again for ids that were there and are gone: each time, another ended them meanwhile."""


def enqueue(
    database: Database, messages: Sequence[NewMessage], on_conflict: OnConflict
) -> tuple[list[Enqueued], list[Alarm]]:
    """Insert messages, and do what `on_conflict` says for ids that are there.

    Returns the answers, and alarms to put.
    """
    enqueued: dict[int, Enqueued] = {}
    alarms: list[Alarm] = []
    for some in _distinct(messages):
        enqueued_now, alarms_now = _enqueue(database, {message.id: message for message in some.values()}, on_conflict)
        enqueued |= {i: enqueued_now[message.id] for i, message in some.items()}
        alarms += alarms_now
    return [enqueued[i] for i in range(len(messages))], alarms


def _distinct(messages: Sequence[NewMessage]) -> Iterator[dict[int, NewMessage]]:
    """Yield messages by position, in groups with each id once: the first of each id, then the second, and so on."""
    todo = dict(enumerate(messages))
    while todo:
        first = {message.id: i for i, message in reversed(todo.items())}
        yield {i: todo.pop(i) for i in sorted(first.values())}


def _enqueue(
    database: Database, messages: dict[str, NewMessage], on_conflict: OnConflict
) -> tuple[dict[str, Enqueued], list[Alarm]]:
    """Insert messages with different ids as `enqueue` does. `messages` and the answers are by id."""
    enqueued: dict[str, Enqueued] = {}
    alarms: list[Alarm] = []
    for _ in range(TRIES):
        for row in statements(database).insert(
            database, [message for id, message in messages.items() if id not in enqueued]
        ):
            header = messages[row.id].header
            enqueued[row.id] = Enqueued(row.id, row.due_ms, created=True)
            alarms.append(Alarm(header.queue, header.key, str(row.pk), max(row.due_ms - row.now_ms, 0)))
        there = [message for id, message in messages.items() if id not in enqueued]
        if there:
            settled, changed = _resolve_conflicts(database, there, on_conflict)
            enqueued |= settled
            alarms += changed
        if len(enqueued) == len(messages):
            break
    for id in messages.keys() - enqueued.keys():  # it comes and goes faster than we look: as good as one that was there
        enqueued[id] = Enqueued(id, 0, created=False)
    return enqueued, alarms


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


def _resolve_conflicts(
    database: Database, messages: Sequence[NewMessage], on_conflict: OnConflict
) -> tuple[dict[str, Enqueued], list[Alarm]]:
    """Return the answer, by id, for messages whose ids were there already, and the alarms to put.

    The ids differ. Those that have gone meanwhile are left out.
    """
    changed = _change(database, messages, on_conflict)
    alarms = [Alarm(queue, key, str(pk), max(wait_ms, 0)) for _, pk, queue, key, _, wait_ms, *_ in changed]
    enqueued = {id: Enqueued(id, due_ms, created=False) for id, _, _, _, due_ms, *_ in changed}
    return enqueued | _look(database, [message.id for message in messages if message.id not in enqueued]), alarms


def _look(database: Database, ids: Sequence[str]) -> dict[str, Enqueued]:
    if not ids:
        return {}
    found = database.under_ids(ids, lock=database.dialect.newest)
    rows = database.rows(f"SELECT r.message_id, r.due_at, NOT ({WAITING}) FROM {found.text}", found.parameters)
    return {id: Enqueued(id, due_ms, created=False, running=bool(running)) for id, due_ms, running in rows}


def _change(database: Database, messages: Sequence[NewMessage], on_conflict: OnConflict) -> list[tuple[Any, ...]]:
    """Change the rows that wait under the ids. Returns id, pk, queue, key, due time and wait of those changed."""
    if on_conflict in ("keep", "raise"):
        return []
    dialect = database.dialect
    due = _due(dialect)
    where = WAITING
    in_order = sorted(messages, key=attrgetter("id"))
    if on_conflict == "replace":
        columns, rows, changes = _NEW, [_new(message) for message in in_order], _replacement(dialect, due)
    else:
        columns, rows = _TIMES, [(message.id, message.delay_ms, message.at_ms) for message in in_order]
        changes = f"expires_at = r.expires_at - r.scheduled_at + {due}"
        where += f" AND {due} {'<' if on_conflict == 'earliest' else '>'} r.due_at"
    return statements(database).change_given(
        database,
        f"{changes}, due_at = {due}, scheduled_at = {due}",
        database.given("given", columns, rows),
        where,
        f'message_id, id, queue, "key", due_at, due_at - {dialect.now}{database.notice}',
    )


def _due(dialect: Dialect) -> str:
    """Return SQL for a new due time, by the clock of the statement."""
    at = f"{dialect.greatest}({dialect.now}, given.at_ms)"
    return f"(CASE WHEN given.at_ms IS NULL THEN {dialect.now_up} + given.delay_ms ELSE {at} END)"


def _replacement(dialect: Dialect, due: str) -> str:
    return (
        'queue = given.new_queue, "key" = given.new_key, data = given.new_data, tag = given.new_tag,'
        " trace_id = given.new_trace_id, max_attempts = given.new_max_attempts, timeout_ms = given.new_timeout_ms,"
        " at_most_once = (given.once = 1), failures = 0, crashes = 0, error = '', history = '[]',"
        f" sent_at = {dialect.now}, expires_at = {due} + given.expires_ms"
    )


def _new(message: NewMessage) -> tuple[Any, ...]:
    """Return the columns `_NEW` of a message."""
    header = message.header
    times = message.id, message.delay_ms, message.at_ms
    names = header.queue, header.key, message.body.decode(), header.tag, header.trace_id
    return *times, *names, header.expires_ms, header.max_attempts, header.timeout_ms, int(header.at_most_once)


_ENDED = ("delayq_finish", "delayq_error")


def insert_new(database: Database, messages: Sequence[NewMessage]) -> int:
    """Insert the messages whose id is in none of the three tables, in one transaction. Returns how many."""
    return database.transaction(lambda: sum(_insert_page(database, page) for page in pages(messages, BATCH)))


def _insert_page(database: Database, messages: Sequence[NewMessage]) -> int:
    ended = _ended(database, [message.id for message in messages])
    enqueued, _ = enqueue(database, [message for message in messages if message.id not in ended], "keep")
    created = [one.id for one in enqueued if one.created]
    return len(created) - _take_back(database, created)


def _take_back(database: Database, created: Sequence[str]) -> int:
    """Remove those of the new rows whose id had ended by the time of the insert, and return how many.

    Such a message still ran when we looked. Nobody has seen these rows, because they are not committed yet.
    """
    ended = sorted(_ended(database, created, database.dialect.newest))
    if ended:
        found = database.under_ids(ended, lock=database.dialect.lock)  # of an id, one that ended may be seen as well
        pks = database.among("id", [pk for (pk,) in database.rows(f"SELECT r.id FROM {found.text}", found.parameters)])
        database.changed(f"DELETE FROM delayq_ready WHERE {pks.text}", pks.parameters)
    return len(ended)


def _ended(database: Database, ids: Sequence[str], lock: str = "") -> set[str]:
    if not ids:
        return set()
    found = [database.under_ids(ids, lock=lock, table=table) for table in _ENDED]
    return {id for one in found for (id,) in database.rows(f"SELECT r.message_id FROM {one.text}", one.parameters)}
