"""Read the rows of messages by tag, key and beginning of the id, whichever table they are in, some at a time."""

from collections.abc import Collection, Iterator
from typing import TypeVar

from django.db.models import Q, QuerySet

from django_delayq.core.message import State
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage
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

Row = TypeVar("Row", bound=MessageRow)


def rows_with_states(
    database: Database, tag: str | None, key: str | None, id_prefix: str | None, states: Collection[State]
) -> Iterator[tuple[MessageRow, State]]:
    """Yield each row that matches the arguments that are not None, with its state, if that is one of `states`.

    The ready table comes first, then the failed messages, then those that finished or were cancelled.
    """
    condition = Q(alias=database.alias)
    if tag is not None:
        condition &= Q(tag=tag)
    if id_prefix is not None:
        condition &= Q(message_id__gte=id_prefix, message_id__lte=id_prefix + _LAST)
    with database.available():
        if any(state in states for state in (State.PENDING, State.READY, State.RUNNING)):
            now = from_ms(database.now_ms())
            for ready in _rows(ReadyMessage, database, condition, key):
                state = _state_of(ready, is_due=ready.due_at <= now)
                if state in states:
                    yield ready, state
        if State.ERROR in states:
            for failed in _rows(ErrorMessage, database, condition, key):
                yield failed, State.ERROR
        outcomes = [state for state in (State.FINISHED, State.CANCELLED) if state in states]
        if outcomes:
            for ended in _rows(FinishMessage, database, condition & Q(outcome__in=outcomes), key):
                yield ended, State(ended.outcome)


def _rows(model: type[Row], database: Database, condition: Q, key: str | None) -> Iterator[Row]:
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
