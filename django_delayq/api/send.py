"""Send one message."""

from datetime import datetime
from typing import Any, Unpack

from asgiref.sync import sync_to_async

from django_delayq.api.on_commit import (
    atell_sent,
    tell_sent,
    wait_for_commit,
    waits_for_commit,
    warn_of_others,
)
from django_delayq.api.prepare import prepare
from django_delayq.brokers import get_backend
from django_delayq.conf import get_alias
from django_delayq.core.message import OnConflict, Send, Sent, When
from django_delayq.core.requests import Enqueued
from django_delayq.support.units import Duration


def send_delay_message(
    key: str,
    data: Any = None,
    *,
    delay: Duration | None = None,
    at: datetime | None = None,
    id: str | None = None,
    on_conflict: OnConflict = "keep",
    tag: str | None = None,
    trace_id: str | None = None,
    queue: str | None = None,
    max_attempts: int | None = None,
    expires: Duration | None = None,
    timeout: Duration | None = None,
    at_most_once: bool | None = None,
    using: str | None = None,
    on_commit: bool | None = None,
) -> Sent:
    """Have the handler of `key` run with `data` after `delay`, or at the instant `at`; now when neither is given.

    With a store the message is a row of the caller's transaction on the alias's database: committed and rolled back
    with it. Without one, inside `atomic()` it is sent after the commit, and not at all after a rollback; `delay` counts
    from this call all the same. If the broker is away when the commit comes, the message is lost: that is logged at
    ERROR, and the signal `send_failed` is sent. With `on_commit=False` it is sent at once. A transaction managed by
    hand (`set_autocommit(False)`) is not seen.

    Of two messages with one `id` that wait at the same time only one exists; `on_conflict` says which: `keep` the
    first, `replace` it, give it the `earliest` or the `latest` due time of both, or `raise` `DuplicateMessage`.

    Raises `TypeError`, `ValueError` or `UnknownKey`, naming the value and the fix, before anything is sent; `SendError`
    when the broker was away or did not answer within 2 seconds, so that it may have taken the message;
    `BrokerUnavailable` when it has no memory left and `BrokerRefused` when it must be mended first. The last three are
    each a `DelayqError`.
    """
    send = Send(
        key,
        data,
        delay=delay,
        at=at,
        id=id,
        on_conflict=on_conflict,
        tag=tag,
        trace_id=trace_id,
        queue=queue,
        max_attempts=max_attempts,
        expires=expires,
        timeout=timeout,
        at_most_once=at_most_once,
        using=using,
    )
    alias = get_alias(using)
    message = prepare(send, alias)
    if waits_for_commit(alias, on_commit) and wait_for_commit(alias, message, on_conflict):
        return Sent(message.id, None, None)
    if alias.store is not None:
        warn_of_others(alias)
    enqueued = get_backend(alias.name).queue.enqueue([message], on_conflict)
    tell_sent(alias, [message], enqueued)
    return _answer(enqueued[0])


async def asend_delay_message(
    key: str, data: Any = None, *, using: str | None = None, on_commit: bool | None = None, **when: Unpack[When]
) -> Sent:
    """Send as `send_delay_message` does, from async code. The transaction is the one that `sync_to_async` sees here."""
    alias = get_alias(using)
    if alias.store is not None:
        return await sync_to_async(send_delay_message)(key, data, using=using, on_commit=on_commit, **when)
    send = Send(key, data, using=using, **when)
    message = prepare(send, alias)
    if waits_for_commit(alias, on_commit) and await sync_to_async(wait_for_commit)(alias, message, send.on_conflict):
        return Sent(message.id, None, None)
    enqueued = await get_backend(alias.name).queue.aenqueue([message], send.on_conflict)
    await atell_sent(alias, [message], enqueued)
    return _answer(enqueued[0])


def _answer(enqueued: Enqueued) -> Sent:
    return Sent(enqueued.id, enqueued.due_ms, enqueued.created, enqueued.running)
