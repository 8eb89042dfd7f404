"""List messages by tag, key, beginning of the id, and state, whether they wait, run or have ended."""

from collections.abc import AsyncIterator, Collection, Iterator
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async

from django_delayq.api.operations import readable
from django_delayq.brokers import get_backend
from django_delayq.core.errors import Unsupported
from django_delayq.core.lanes import split_lane
from django_delayq.core.message import MessageInfo, State, read_progress
from django_delayq.support.validation import check_name, short_repr

STATES = (State.PENDING, State.READY, State.RUNNING, State.FINISHED, State.CANCELLED, State.FAILED)
"""The states in which a message has a row."""


def list_delay_messages(
    *,
    tag: str | None = None,
    key: str | None = None,
    id_prefix: str | None = None,
    states: Collection[State] = STATES,
    using: str | None = None,
) -> Iterator[MessageInfo]:
    """Yield the messages in one of `states` with this tag, this key and an id that begins with `id_prefix`, if given.

    Messages that wait or run come first, then failed ones, then finished and cancelled ones whose rows are still kept.
    Within each of these parts they have no order. Rows are read as they are asked for, some at a time, so a message
    that changes meanwhile may be listed twice, or not at all.

    Raises `Unsupported` without a store, and `TypeError` or `ValueError`, naming the value and the fix.
    """
    backend = get_backend(using)
    if backend.store is None:
        raise Unsupported("Listing messages needs a store (STORE in DELAYQ); read one with get_delay_message(id).")
    found = backend.store.rows_with_states(
        None if tag is None else check_name(tag, "tag"),
        None if key is None else check_name(key, "key"),
        None if id_prefix is None else check_name(id_prefix, "id_prefix"),
        _checked(states),
    )
    return (_info(row, state) for row, state in found)


async def alist_delay_messages(
    *,
    tag: str | None = None,
    key: str | None = None,
    id_prefix: str | None = None,
    states: Collection[State] = STATES,
    using: str | None = None,
) -> AsyncIterator[MessageInfo]:
    """Yield messages like `list_delay_messages`, for async code."""
    listed = await sync_to_async(list_delay_messages)(tag=tag, key=key, id_prefix=id_prefix, states=states, using=using)
    following = sync_to_async(partial(next, listed, None))
    while (info := await following()) is not None:
        yield info


def _checked(states: Collection[State]) -> frozenset[State]:
    if isinstance(states, str):
        raise TypeError(f"states={short_repr(states)} is one state; give a list, such as [State.READY].")
    for state in states:
        if state not in STATES:
            names = ", ".join(f"State.{each.name}" for each in STATES)
            raise ValueError(f"states has {short_repr(state)}; give some of {names}.")
    return frozenset(map(State, states))


def _info(row: Any, state: State) -> MessageInfo:
    queue, priority = split_lane(row.queue)
    is_running = state is State.RUNNING
    return MessageInfo(
        id=row.message_id,
        key=row.key,
        queue=queue,
        state=state,
        data=readable(row.alias, row.key, row.data.encode(), row.version),
        due_at=row.due_at,
        sent_at=row.sent_at,
        failures=row.failures,
        expires_at=row.expires_at,
        tag=row.tag,
        trace_id=row.trace_id,
        error=row.error,
        holder=row.worker if is_running else "",
        lease_until=row.lease_until if is_running else None,
        priority=priority,
        more_tags=row.more_tags,
        merged=row.merged_sends,
        again_at=row.again_at,
        progress=read_progress(row.progress or "") if is_running else None,
        cancelled_by=(row.cancel_by or "") if is_running and row.cancel_at is not None else None,
        share=row.share,
    )
