"""Cancel and reschedule messages by id or by tag, and read one by its id."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_delayq.api import registry
from django_delayq.api.on_commit import cancel_waiting, reschedule_waiting
from django_delayq.api.send import due_ms, rule_text
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Action, Backend, Info, Tables, pages
from django_delayq.conf import Alias
from django_delayq.core.codec import decode_data
from django_delayq.core.errors import DataMismatch, Unsupported
from django_delayq.core.human_time import At, Windows
from django_delayq.core.lanes import split_lane
from django_delayq.core.limits import interval_us_of
from django_delayq.core.message import MessageInfo, read_progress
from django_delayq.core.requests import BATCH
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import Duration, to_ms
from django_delayq.support.validation import check_flag, check_name, short_repr


class Undone(NamedTuple):
    """The result of an undo: how many messages were put back, and how many were left, because they ran or changed."""

    put_back: int
    left: int


def cancel_delay_messages(
    *ids: str,
    tag: str | None = None,
    running: bool = False,
    by: str = "",
    action: str | None = None,
    using: str | None = None,
) -> int:
    """Cancel waiting messages: by id, and all that have the `tag` among theirs. A tag needs a store.

    With `running`, those that run are asked to end too; `by` says who asks. Their workers learn it with the next
    renewals of their leases: an async handler is cancelled, a child process is killed, and a sync handler sees
    `message.cancelled`. Each message is then cancelled, unless its handler finishes first. It does not run again.

    With a store this is a part of the caller's transaction, or else a transaction of its own: all of them are cancelled
    or none. Without a store they are cancelled at once. If that happens inside a transaction, its rollback does not
    bring them back. Sends that wait for the commit of the caller's transaction are cancelled as well.

    With the name of an `action`, `undo_delay_action` brings back those that waited. This needs a store.

    Return how many will now never start, and how many that run were asked to end; messages that have ended or never
    existed don't count. Raises `BrokerUnavailable` or `BrokerRefused`; calling again is safe.
    """
    backend = get_backend(using)
    running_by = _asked_by(running, by, action)
    cancel = partial(backend.queue.cancel, running_by=running_by)
    if action is not None:
        cancel = partial(_stored(backend).cancel, running_by=running_by, action=_named(action, by))
    with _refusing_async_code("acancel_delay_messages"):
        return _change(backend, ids, tag, cancel, cancel_waiting, running=running)


async def acancel_delay_messages(
    *ids: str,
    tag: str | None = None,
    running: bool = False,
    by: str = "",
    action: str | None = None,
    using: str | None = None,
) -> int:
    """Cancel like `cancel_delay_messages`, from async code."""
    backend = get_backend(using)
    if backend.store is not None or action is not None:
        return await sync_to_async(cancel_delay_messages)(
            *ids, tag=tag, running=running, by=by, action=action, using=using
        )
    cancel = partial(backend.queue.acancel, running_by=_asked_by(running, by, action))
    return await _achange(backend, ids, tag, cancel, cancel_waiting)


def _asked_by(running: bool, by: str, action: str | None) -> str | None:
    """Return who asks to cancel messages that run ('' for nobody); None if those go on."""
    if not check_flag(running, "running"):
        if by and action is None:
            raise TypeError("by=... says who asks to cancel what runs; give running=True as well.")
        return None
    return check_name(by, "by") if by != "" else ""


def _named(action: str, by: str = "") -> Action:
    return Action(check_name(action, "action"), check_name(by, "by") if by != "" else "")


def _stored(backend: Backend) -> Tables:
    """Return the tables of the alias, which keep what undoes an action. Raises `Unsupported` without a store."""
    if backend.store is None:
        raise Unsupported("An action that can be undone needs a store (STORE in DELAYQ).")
    return backend.store


def reschedule_delay_messages(
    *ids: str,
    tag: str | None = None,
    delay: Duration | None = None,
    at: datetime | At | None = None,
    window: Windows | None = None,
    action: str | None = None,
    by: str = "",
    using: str | None = None,
) -> int:
    """Give waiting messages a new due time: after `delay`, which may be 0, or at `at`.

    If the `window` is closed then, the time is when it opens. A window, or an `At`, takes the place of what the last
    send said: the window holds for retries and snoozes too, and without one that of the handler does.

    With the name of an `action`, `undo_delay_action` gives back the due times; `by` says who acts. This needs a store,
    and is not for windows or an `At`, because their rules could not be given back.

    Ids, tags, transactions and errors are as with `cancel_delay_messages`. Return how many messages were waiting; only
    these are changed.
    """
    backend = get_backend(using)
    delay_ms, at_ms, rule = _new_due_ms(backend.alias, delay, at, window)
    reschedule = partial(backend.queue.reschedule, delay_ms=delay_ms, at_ms=at_ms)
    if rule and backend.store is not None:
        reschedule = partial(backend.store.reschedule, at_ms=at_ms, rule=rule)
    if action is not None:
        if rule:
            raise TypeError("action=... is not for a window or an At, whose rules could not be given back.")
        named = _named(action, by)
        reschedule = partial(_stored(backend).reschedule, delay_ms=delay_ms, at_ms=at_ms, action=named)
    elif by:
        raise TypeError("by=... says who acts; give action=... as well.")
    with _refusing_async_code("areschedule_delay_messages"):
        return _change(backend, ids, tag, reschedule, partial(reschedule_waiting, delay_ms=delay_ms, at_ms=at_ms))


async def areschedule_delay_messages(
    *ids: str,
    tag: str | None = None,
    delay: Duration | None = None,
    at: datetime | At | None = None,
    window: Windows | None = None,
    action: str | None = None,
    by: str = "",
    using: str | None = None,
) -> int:
    """Reschedule like `reschedule_delay_messages`, from async code."""
    backend = get_backend(using)
    if backend.store is not None or action is not None or by:
        return await sync_to_async(reschedule_delay_messages)(
            *ids, tag=tag, delay=delay, at=at, window=window, action=action, by=by, using=using
        )
    delay_ms, at_ms, _no_rule = _new_due_ms(backend.alias, delay, at, window)
    reschedule = partial(backend.queue.areschedule, delay_ms=delay_ms, at_ms=at_ms)
    return await _achange(backend, ids, tag, reschedule, partial(reschedule_waiting, delay_ms=delay_ms, at_ms=at_ms))


def send_delay_messages_again(
    *ids: str,
    delay: Duration = 0,
    rate: str | None = None,
    action: str | None = None,
    by: str = "",
    using: str | None = None,
) -> int:
    """Send messages again that have finished or were cancelled, by id, on purpose. This needs a store.

    Each is a new message with the id, the data and the options of the one that ended last under its id, whose row
    stays. Its attempts are counted from 0, and it is due after `delay`. With a `rate` such as "100/m" the first is due
    then, and the others after it, so that no more than that are due in a minute. `id_scope="all"` does not hold here.

    With the name of an `action`, `undo_delay_action` cancels those that still wait; `by` says who acts.

    An id that waits or runs, and one of which no row is kept (RETENTION), is left alone. Return how many were sent.
    This is a part of the caller's transaction, like a send. Raises `Unsupported` without a store, and
    `BrokerUnavailable` or `BrokerRefused`.
    """
    backend = get_backend(using)
    if backend.store is None:
        raise Unsupported("Sending again needs a store (STORE in DELAYQ), which keeps what has ended.")
    delay_ms, interval_us = to_ms(delay, "delay"), 0 if rate is None else interval_us_of(rate, "rate")
    named, _no_tag = _checked(ids, None)
    if by and action is None:
        raise TypeError("by=... says who acts; give action=... as well.")
    undoable = None if action is None else _named(action, by)
    sent = 0
    with _refusing_async_code("sync_to_async(send_delay_messages_again)"):
        for page in pages(list(dict.fromkeys(named)), BATCH):
            sent += sum(
                backend.store.send_again(page, delay_ms=delay_ms, interval_us=interval_us, first=sent, action=undoable)
            )
    return sent


def undo_delay_action(action: str, *, by: str = "", using: str | None = None) -> Undone:
    """Undo what was done as this `action`, for messages that have not run: an action can be undone for 7 days.

    Messages that were rescheduled get back their due times. Those that were cancelled wait again. Those that were sent
    again are cancelled. A due time that is past becomes now. A message that runs, has run, or has changed since is left
    as it is. `by` says who undoes.

    Messages are put back some hundreds at a time, each in a transaction of their own, or all in the caller's. Calling
    again goes on where a call was cut short, and puts nothing back twice. Raises `DelayqError` if nothing is known of
    the action, `Unsupported` without a store, and `BrokerUnavailable` or `BrokerRefused`.
    """
    named = _named(action, by)
    tables = _stored(get_backend(using))
    put_back = left = 0
    with _refusing_async_code("sync_to_async(undo_delay_action)"):
        tables.begin_undo(named)
        while pks := tables.changed_by(named.name):
            page = tables.put_back(named.name, pks)
            put_back, left = put_back + len(page.pks), left + page.left
    return Undone(put_back, left)


def get_delay_message(id: str, *, using: str | None = None) -> MessageInfo | None:
    """Return the message with this id that waits or runs; else the one that ended last; else None.

    With a store, one that has finished or was cancelled is found for as long as its row is kept (RETENTION). Without a
    store, only failed messages are kept. A send that waits for a commit is not found. Raises `BrokerUnavailable` or
    `BrokerRefused`.
    """
    backend = get_backend(using)
    with _refusing_async_code("aget_delay_message"):
        info = backend.queue.get(check_name(id, "id"))
    return None if info is None else message_info(backend.alias.name, info)


async def aget_delay_message(id: str, *, using: str | None = None) -> MessageInfo | None:
    """Return the message like `get_delay_message`, from async code."""
    backend = get_backend(using)
    info = await backend.queue.aget(check_name(id, "id"))
    return None if info is None else message_info(backend.alias.name, info)


@contextmanager
def _refusing_async_code(instead: str) -> Iterator[None]:
    """Say in Django's error about a query in async code what to write in its place."""
    try:
        yield
    except SynchronousOnlyOperation as error:
        raise SynchronousOnlyOperation(f"This call is in async code: write `await {instead}(...)`.") from error


def message_info(using: str, info: Info) -> MessageInfo:
    """Return a backend's `Info` as the `MessageInfo` that callers get."""
    header = info.header
    queue, priority = split_lane(header.queue)
    expires_ms = header.expires_at_ms
    return MessageInfo(
        id=info.id,
        key=header.key,
        queue=queue,
        state=info.state,
        data=readable(using, header.key, info.body, header.version),
        due_at=from_ms(info.due_ms),
        sent_at=from_ms(header.sent_ms),
        failures=info.failures,
        expires_at=None if expires_ms is None else from_ms(expires_ms),
        tag=header.tag,
        trace_id=header.trace_id,
        error=info.error,
        holder=info.holder,
        lease_until=None if info.lease_end_ms is None else from_ms(info.lease_end_ms),
        priority=priority,
        more_tags=header.more_tags,
        merged=info.merged,
        again_at=None if info.again_ms is None else from_ms(info.again_ms),
        progress=read_progress(info.progress),
        cancelled_by=None if info.cancel_request is None else info.cancel_request.by,
        share=header.share,
    )


def _change(
    backend: Backend,
    ids: tuple[str, ...],
    tag: str | None,
    change: Callable[[Sequence[str]], list[bool]],
    change_waiting: Callable[[Alias, list[str]], set[str]],
    *,
    running: bool = False,
) -> int:
    """Change messages with `change`, and sends that wait for the commit with `change_waiting`. Return how many changed.

    With a store all changes are one transaction.
    """
    checked = _checked(ids, tag)  # outside of that transaction, which an error would end, and the caller's with it

    def work() -> int:
        wanted = _wanted(backend, *checked, running=running)
        answers = [answer for batch in pages(wanted, BATCH) for answer in change(batch)]
        return _count(wanted, answers, change_waiting(backend.alias, wanted))

    return backend.queue.atomically(work)


async def _achange(
    backend: Backend,
    ids: tuple[str, ...],
    tag: str | None,
    change: Callable[[Sequence[str]], Awaitable[list[bool]]],
    change_waiting: Callable[[Alias, list[str]], set[str]],
) -> int:
    """Change messages like `_change`, without a store."""
    wanted = _wanted(backend, *_checked(ids, tag))
    answers = [answer for batch in pages(wanted, BATCH) for answer in await change(batch)]
    return _count(wanted, answers, await sync_to_async(change_waiting)(backend.alias, wanted))


def _new_due_ms(
    alias: Alias, delay: Duration | None, at: datetime | At | None, window: Windows | None
) -> tuple[int, int | None, str]:
    """Return the delay in ms, the due time in epoch ms (or None), and the rule of the due time for the store."""
    if delay is None and at is None:
        raise TypeError("there is no new time; give delay=... or at=..., or delay=0 for at once.")
    delay_ms, at_ms, counts_from_ms = due_ms(delay, at, window)
    return delay_ms, at_ms, "" if counts_from_ms is None else rule_text(alias, counts_from_ms, at, window)


def _checked(ids: tuple[str, ...], tag: str | None) -> tuple[list[str], str | None]:
    """Return the ids and the tag as plain names. Raises `TypeError` or `ValueError`, naming the value and the fix."""
    if not ids and tag is None:
        raise TypeError("there is no id and no tag; give the ids of messages, (*ids), or tag=...")
    for id in ids:
        if not isinstance(id, str):
            raise TypeError(f"id={short_repr(id)} is {type(id).__name__}; give each id as a str of its own: (*ids).")
    return [check_name(id, "id") for id in ids], None if tag is None else check_name(tag, "tag")


def _wanted(backend: Backend, ids: list[str], tag: str | None, *, running: bool = False) -> list[str]:
    """Return `ids` and the ids of waiting messages with the tag, with `running` also of those that run.

    Raises `Unsupported` for a tag without a store.
    """
    if tag is None:
        return ids
    if backend.store is None:
        raise Unsupported("Finding messages by tag needs a store (STORE in DELAYQ); give ids, or set one up.")
    return [*ids, *backend.store.ids_by_tag(tag, running=running)]


def _count(ids: Sequence[str], answers: Sequence[bool], uncommitted: set[str]) -> int:
    return len({id for id, answer in zip(ids, answers, strict=True) if answer} | uncommitted)


def readable(using: str, key: str, body: bytes, version: int | None) -> Any:
    """Return the data as the handler would get it; if it does not fit, as JSON values; if it is no JSON, as text."""
    handler = registry.find(using, key)
    for typed in (handler, None):
        try:
            return decode_data(body) if typed is None else typed.data_of(body, version)
        except (DataMismatch, TypeError):  # TypeError: the handler's annotation is wrong, which a check reports
            continue
    return body.decode(errors="replace")
