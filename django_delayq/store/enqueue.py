"""Send: insert rows, in the caller's transaction. The due time is the database's clock plus the delay."""

from collections.abc import Iterator, Sequence

from django_delayq.brokers.base import Alarm, Enqueued, NewMessage, OnConflict
from django_delayq.store.conflicts import settle_conflicts
from django_delayq.store.database import Database
from django_delayq.store.sql.statements import statements

TRIES = 5
"""How often a send looks again for ids that were there and are gone: each time, another ended them meanwhile."""


def put(database: Database, puts: Sequence[NewMessage], on_conflict: OnConflict) -> tuple[list[Enqueued], list[Alarm]]:
    """Insert messages, and do what `on_conflict` says for ids that are there.

    Returns the answers, and alarms to put.
    """
    placed: dict[int, Enqueued] = {}
    alarms: list[Alarm] = []
    for some in _distinct(puts):
        placed_now, alarms_now = _put(database, {put.id: put for put in some.values()}, on_conflict)
        placed |= {i: placed_now[put.id] for i, put in some.items()}
        alarms += alarms_now
    return [placed[i] for i in range(len(puts))], alarms


def _distinct(puts: Sequence[NewMessage]) -> Iterator[dict[int, NewMessage]]:
    """Yield the messages by their places, no id twice at a time: the first of each id, then the second, and so on."""
    todo = dict(enumerate(puts))
    while todo:
        first = {put.id: i for i, put in reversed(todo.items())}
        yield {i: todo.pop(i) for i in sorted(first.values())}


def _put(
    database: Database, puts: dict[str, NewMessage], on_conflict: OnConflict
) -> tuple[dict[str, Enqueued], list[Alarm]]:
    """Insert as `put` does, by id."""
    placed: dict[str, Enqueued] = {}
    alarms: list[Alarm] = []
    for _ in range(TRIES):
        for row in statements(database).insert(database, [put for id, put in puts.items() if id not in placed]):
            header = puts[row.id].header
            placed[row.id] = Enqueued(row.id, row.due_ms, created=True)
            alarms.append(Alarm(header.queue, header.key, str(row.pk), max(row.due_ms - row.now_ms, 0)))
        there = [put for id, put in puts.items() if id not in placed]
        if there:
            settled, changed = settle_conflicts(database, there, on_conflict)
            placed |= settled
            alarms += changed
        if len(placed) == len(puts):
            break
    for id in puts.keys() - placed.keys():  # it comes and goes faster than we look: as good as one that was there
        placed[id] = Enqueued(id, 0, created=False)
    return placed, alarms
