"""Read the rows of messages by tag, key and beginning of the id, whichever table they are in, some at a time."""

from collections.abc import Collection, Iterator
from itertools import chain, islice
from typing import TypeVar

from django.db.models import Q, QuerySet

from django_delayq.core.message import State
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage
from django_delayq.store import tags
from django_delayq.store.database import Database
from django_delayq.store.queries import ended_pairs, waiting_pairs
from django_delayq.support.timestamps import from_ms

CHUNK = 500
"""How many rows are read at once."""
MOST_PAIRS = 10_000
"""The most pairs of queue and key that are asked for, to find the queues of a key."""

_PAIRS = {ReadyMessage: waiting_pairs, FinishMessage: ended_pairs}
"""The tables whose index of keys begins with the queue."""
_LAST = "\U0010ffff"
_ANY = Q()

Row = TypeVar("Row", bound=MessageRow)


def rows_with_states(
    database: Database, tag: str | None, key: str | None, id_prefix: str | None, states: Collection[State]
) -> Iterator[tuple[MessageRow, State]]:
    """Yield each row that matches the arguments that are not None, with its state, if that is one of `states`.

    The ready table comes first, then the failed messages, then those that finished or were cancelled.
    """
    with database.available():
        if any(state in states for state in (State.PENDING, State.READY, State.RUNNING)):
            now = from_ms(database.now_ms())
            for ready in _rows(ReadyMessage, database, tag, key, id_prefix):
                state = _state_of(ready, is_due=ready.due_at <= now)
                if state in states:
                    yield ready, state
        if State.FAILED in states:
            for failed in _rows(ErrorMessage, database, tag, key, id_prefix):
                yield failed, State.FAILED
        outcomes = [state for state in (State.FINISHED, State.CANCELLED) if state in states]
        if outcomes:
            for ended in _rows(FinishMessage, database, tag, key, id_prefix, Q(outcome__in=outcomes)):
                if ended.outcome in outcomes:
                    yield ended, State(ended.outcome)


def _rows(
    model: type[Row], database: Database, tag: str | None, key: str | None, id_prefix: str | None, condition: Q = _ANY
) -> Iterator[Row]:
    """Yield the rows that match, with all their tags.

    If a tag is asked for, those that have it after their first may not match `condition`.
    """
    condition &= Q(alias=database.alias)
    if id_prefix is not None:
        condition &= Q(message_id__gte=id_prefix, message_id__lte=id_prefix + _LAST)
    if tag is None:
        found = _matching(model, database, condition, key)
    else:
        by_first = _matching(model, database, condition & Q(tag=tag), key)
        found = chain(by_first, with_further_tag(model, database, tag, key, id_prefix or ""))
    while page := list(islice(found, CHUNK)):
        tags.add_to(database, [(row.pk, row) for row in page])
        yield from page


def with_further_tag(model: type[Row], database: Database, tag: str, key: str | None, id_prefix: str) -> Iterator[Row]:
    """Yield the rows that have the tag after their first.

    Databases find them by their primary keys alone. With more conditions some would read another index instead.
    """
    for pks in tags.pages_of_pks(database, tag, CHUNK):
        rows: QuerySet[Row] = model._default_manager.using(database.using).filter(pk__in=pks)
        for row in rows.defer("history"):
            if row.tag != tag and key in (None, row.key) and row.message_id.startswith(id_prefix):
                yield row


def _matching(model: type[Row], database: Database, condition: Q, key: str | None) -> Iterator[Row]:
    if key is not None:
        condition &= Q(key=key)
        pairs = _PAIRS[model](database, MOST_PAIRS) if model in _PAIRS else []
        if 0 < len(pairs) < MOST_PAIRS:  # with the queues, an index leads to the rows of a key
            condition &= Q(queue__in={queue for queue, of_key in pairs if of_key == key})
    rows: QuerySet[Row] = model._default_manager.using(database.using).filter(condition)
    return rows.defer("history").iterator(CHUNK)


def _state_of(row: ReadyMessage, *, is_due: bool) -> State:
    if row.token is not None:
        return State.RUNNING
    return State.READY if is_due else State.PENDING
