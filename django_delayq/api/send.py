"""Send one message: check and prepare it, and enqueue it in the caller's transaction or after its commit."""

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Never, Unpack, get_args

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.utils import timezone

from django_delayq import tracing
from django_delayq.api import registry
from django_delayq.api.on_commit import aemit_sent, emit_sent, wait_for_commit
from django_delayq.api.unknown import refuse_unknown
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend
from django_delayq.conf import DEFAULT_QUEUE, Alias
from django_delayq.core.codec import decode_data, encode_data
from django_delayq.core.errors import DataMismatch, Unsupported
from django_delayq.core.human_time import At, Windows, check_windows, due_in_window_ms, spread_of
from django_delayq.core.lanes import lane_of, new_lane, split_lane
from django_delayq.core.limits import Limits
from django_delayq.core.message import IdScope, OnConflict, Send, Sent, Tags, When, WhileRunning
from django_delayq.core.requests import Enqueued, Header, NewMessage
from django_delayq.core.shares import Shares
from django_delayq.signals import message_sent
from django_delayq.support.timestamps import check_aware, due_time_ms, from_ms, wall_clock_ms
from django_delayq.support.units import Duration, to_ms
from django_delayq.support.validation import (
    check_flag,
    check_max_attempts,
    check_new_name,
    check_not_own,
    did_you_mean,
    short_repr,
)

_ON_CONFLICT = get_args(OnConflict)
_ID_SCOPES = get_args(IdScope)
_WHILE_RUNNING = get_args(WhileRunning)
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")

_ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # in ASCII order, as ids sort
_PAIRS = [chr(first) + chr(second) for first in _ALPHABET for second in _ALPHABET]
_BASE = len(_PAIRS)
_LETTER_OF_BYTE = bytes(_ALPHABET[byte % len(_ALPHABET)] for byte in range(256))
_RANDOM = 14
_BLOCK = 256

MOST_TAGS = 10
"""The most tags of a message."""


def send_delay_message(
    key: str,
    data: Any = None,
    *,
    delay: Duration | None = None,
    at: datetime | At | None = None,
    window: Windows | None = None,
    spread: Duration | None = None,
    id: str | None = None,
    on_conflict: OnConflict = "keep",
    tag: Tags | None = None,
    trace_id: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
    max_attempts: int | None = None,
    expires: Duration | None = None,
    timeout: Duration | None = None,
    at_most_once: bool | None = None,
    id_scope: IdScope | None = None,
    max_wait: Duration | None = None,
    while_running: WhileRunning = "drop",
    using: str | None = None,
    on_commit: bool | None = None,
    **unknown: Never,
) -> Sent:
    """Have the handler of `key` run with `data` after `delay`, or at the instant `at`; now if neither is given.

    If a `window` is closed then, it is due when that opens; without one, that of the handler counts. The window of a
    message holds for its retries and snoozes too. `spread` makes it later by less than that, always by as much for its
    id, and no later than the window closes.

    With a store the message is a row that is part of the caller's transaction on the alias's database. Without a store,
    inside `atomic()`, it is sent after the commit, and not at all after a rollback; `delay` counts from this call all
    the same. If the broker is away then, the message is lost: this is logged at ERROR, and the signal `send_failed` is
    sent. With `on_commit=False` it is sent at once. A transaction managed by hand (`set_autocommit(False)`) is not
    noticed.

    `tag` is a name by which the message can be found, or up to 10 of them as a list or tuple, which needs a store: with
    `tag=("order:17", "customer:3")` it is found by either. A tag that is given twice counts once.

    Between messages of a queue that are due, one with a higher `priority`, from -100 to 100, starts first.

    If a message with this `id` waits already, `on_conflict` says what to do: `keep` it, `replace` it, give it the
    `earliest` or the `latest` of the two due times, or `raise` `DuplicateMessage`. With `id_scope="all"` nothing is
    sent either if a message with this `id` has ended, for as long as its row is kept: it finished, failed or was
    cancelled. `raise` raises then too. That needs a store: without one it raises `Unsupported`.

    Two options go with `replace`, for what changes often. With `max_wait` the message is due no later than that long
    after the first send of what waits under the `id`, however often it is replaced; the count begins anew when it has
    run. With `while_running="again"` a send whose `id` runs is kept until the run ends, and is sent then: the newest
    send counts. Without it, `drop`, such a send changes nothing.

    Raises `TypeError`, `ValueError` or `UnknownKey`, naming the value and the fix, before anything is sent. Raises
    `SendError` if the broker was away or did not answer within 2 seconds: it may have taken the message, unless the
    error says that it was not sent; `BrokerUnavailable` if it has no memory left; `BrokerRefused` if somebody must mend
    something first. These three are each a `DelayqError`.
    """
    if unknown:
        refuse_unknown(unknown)
    send = Send(
        key,
        data,
        delay=delay,
        at=at,
        window=window,
        spread=spread,
        id=id,
        on_conflict=on_conflict,
        tag=tag,
        trace_id=trace_id,
        queue=queue,
        priority=priority,
        max_attempts=max_attempts,
        expires=expires,
        timeout=timeout,
        at_most_once=at_most_once,
        id_scope=id_scope,
        max_wait=max_wait,
        while_running=while_running,
        using=using,
    )
    backend = get_backend(using)
    return _send(backend, prepare(send, backend.alias), on_conflict, on_commit)


def send_own_message(key: str, data: Any, *, id: str, tag: str | None = None, using: str | None = None) -> Sent:
    """Send a message of django-delayq itself, with a key, an id and a tag that no site can send."""
    backend = get_backend(using)
    return _send(backend, prepare(Send(key, data, id=id, tag=tag), backend.alias, is_own=True), "keep", None)


def _send(backend: Backend, message: NewMessage, on_conflict: OnConflict, on_commit: bool | None) -> Sent:
    alias = backend.alias
    with tracing.sending(alias.name, [message]) if tracing.tracer else tracing.UNFOLLOWED:
        if _defer_to_commit(alias, on_commit, message, on_conflict):
            return Sent(message.id, None, None)
        try:
            enqueued = backend.queue.enqueue([message], on_conflict)
        except SynchronousOnlyOperation as error:
            raise SynchronousOnlyOperation(
                "This send is in async code: write `await ...asend(...)` in place of send(...)."
            ) from error
        if message_sent.receivers:
            emit_sent(alias, [message], enqueued)
        return _answer(enqueued[0])


async def asend_delay_message(
    key: str, data: Any = None, *, using: str | None = None, on_commit: bool | None = None, **when: Unpack[When]
) -> Sent:
    """Send like `send_delay_message`, from async code.

    The caller's transaction is the one that is open in the thread in which `sync_to_async` runs sync code, because
    Django's transactions belong to a thread.
    """
    backend = get_backend(using)
    alias = backend.alias
    if alias.store is not None:
        return await sync_to_async(send_delay_message)(key, data, using=using, on_commit=on_commit, **when)
    refuse_unknown(when)
    send = Send(key, data, using=using, **when)
    message = prepare(send, alias)
    with tracing.sending(alias.name, [message]) if tracing.tracer else tracing.UNFOLLOWED:
        if on_commit is not False and await sync_to_async(_defer_to_commit)(
            alias, on_commit, message, send.on_conflict
        ):
            return Sent(message.id, None, None)
        enqueued = await backend.queue.aenqueue([message], send.on_conflict)
        await aemit_sent(alias, [message], enqueued)
        return _answer(enqueued[0])


def _defer_to_commit(alias: Alias, on_commit: bool | None, message: NewMessage, on_conflict: OnConflict) -> bool:
    """Have the message sent after the commit, if it must wait for one. Return whether it must."""
    if not must_wait(alias, on_commit):
        return False
    wait_for_commit(alias, message, on_conflict)
    return True


def _answer(enqueued: Enqueued) -> Sent:
    has_ended = enqueued.ended_ms is not None
    return Sent(enqueued.id, enqueued.due_ms, enqueued.created, enqueued.running, has_ended, enqueued.kept)


# Ids for messages that get none from their sender


def new_id() -> str:
    """Return 22 letters and digits: 8 for the millisecond, then 14 at random (83 bits), so that ids sort by time.

    The layout is like a ULID's. The random part comes from the system, because forked processes must not draw the same.
    """
    return _moment(time.time_ns() // 1_000_000) + _random_letters(_RANDOM)


def new_ids() -> Iterator[str]:
    """Yield ids like those of `new_id` without end, for a bulk send. The random parts of many are drawn at once."""
    while True:
        letters = _random_letters(_RANDOM * _BLOCK)
        for start in range(0, len(letters), _RANDOM):
            yield _moment(time.time_ns() // 1_000_000) + letters[start : start + _RANDOM]


def _random_letters(count: int) -> str:
    return os.urandom(count).translate(_LETTER_OF_BYTE).decode()


@lru_cache(maxsize=1)  # a bulk send makes many ids in one millisecond
def _moment(milliseconds: int) -> str:
    high, low = divmod(milliseconds, _BASE * _BASE)
    return _PAIRS[high // _BASE] + _PAIRS[high % _BASE] + _PAIRS[low // _BASE] + _PAIRS[low % _BASE]


# Checking a send, and turning it into a `NewMessage`


def prepare(send: Send, alias: Alias, make_id: Callable[[], str] = new_id, *, is_own: bool = False) -> NewMessage:
    """Check a send and return its message, with an id from `make_id` unless the send has one. Nothing is sent.

    `is_own` says that django-delayq itself sends it. Raises `TypeError`, `ValueError`, `UnknownKey` or `Unsupported`,
    naming the value and the fix.
    """
    if send.on_conflict != "keep":
        _check_on_conflict(send)
    header, handler = addressed(send, alias, is_own=is_own)
    data_type, window = Any, send.window
    if handler is not None:
        data_type, window = handler.data_type, handler.window if window is None else window
    id = make_id() if send.id is None else _name(send.id, "id", is_own)
    delay_ms, at_ms, counts_from_ms = due_ms(send.delay, send.at, window, send.spread, id)
    body = body_of(send.data, data_type, alias)
    if handler is not None and handler.limits is not None:
        check_has_fields(body, handler.limits)
    if handler is not None and handler.shares is not None:
        header = shared(header, handler, body, alias, is_own=is_own)
    max_wait_ms = None
    if send.max_wait is not None:
        max_wait_ms = _max_wait_ms(send, window)
        if (delay_ms if at_ms is None else at_ms - wall_clock_ms()) > max_wait_ms:  # the first send counts too
            delay_ms, at_ms, counts_from_ms = max_wait_ms, None, None
    id_scope: IdScope = "waiting" if send.id is send.id_scope is None else _id_scope(send, header.key, alias)
    if send.while_running != "drop":
        _check_while_running(send, id_scope)
    return NewMessage(
        id,
        header,
        body,
        delay_ms,
        at_ms,
        has_new_id=send.id is None,
        id_scope=id_scope,
        rule="" if counts_from_ms is None else rule_text(alias, counts_from_ms, send.at, window, send.spread),
        max_wait_ms=max_wait_ms,
        while_running=send.while_running,
    )


def _max_wait_ms(send: Send, window: Windows | None) -> int:
    """Return the `max_wait` of a send in ms. Raises if it can't be kept."""
    most_ms = to_ms(send.max_wait, "max_wait") if send.max_wait is not None else 0
    if send.on_conflict != "replace":
        raise ValueError(
            f"max_wait={short_repr(send.max_wait)} bounds how long sends can put off what waits: it needs "
            'on_conflict="replace".'
        )
    if window is not None:
        raise ValueError(
            f"max_wait={short_repr(send.max_wait)} and a window can't both be kept: leave one out, of the handler too."
        )
    return most_ms


def _check_while_running(send: Send, id_scope: IdScope) -> None:
    if send.while_running not in _WHILE_RUNNING:
        near = did_you_mean(str(send.while_running), _WHILE_RUNNING)
        raise ValueError(f"while_running={short_repr(send.while_running)} is unknown: {near}")
    if send.on_conflict != "replace":
        raise ValueError('while_running="again" runs the newest send after the run: it needs on_conflict="replace".')
    if id_scope == "all":
        instead = (
            "forbids: leave one of them out" if send.id_scope else 'of its handler forbids: send id_scope="waiting"'
        )
        raise ValueError(f'while_running="again" runs an id again, which id_scope="all" {instead}.')


def _name(value: str, kind: str, is_own: bool) -> str:
    """Return `value` like `check_new_name`. Also raises like `check_not_own`, unless `is_own`."""
    name = check_new_name(value, kind)
    return name if is_own else check_not_own(name, kind)


def _check_on_conflict(send: Send) -> None:
    if send.on_conflict not in _ON_CONFLICT:
        near = did_you_mean(str(send.on_conflict), _ON_CONFLICT)
        raise ValueError(f"on_conflict={short_repr(send.on_conflict)} is unknown: {near}")
    if send.id is None:
        raise ValueError(
            f"on_conflict={short_repr(send.on_conflict)} needs an id: without one no message is in conflict."
        )


def check_id_scope(id_scope: IdScope) -> IdScope:
    """Return `id_scope` unchanged. Raises `ValueError` for any other value than those of `IdScope`."""
    if id_scope not in _ID_SCOPES:
        raise ValueError(f"id_scope={short_repr(id_scope)} is unknown: {did_you_mean(str(id_scope), _ID_SCOPES)}")
    return id_scope


def _id_scope(send: Send, key: str, alias: Alias) -> IdScope:
    """Return the `id_scope` of a send, or else that of its handler. Raises if it can't be had."""
    if send.id_scope is None:
        handler = registry.find(alias.name, key)
        id_scope: IdScope = "waiting" if handler is None else handler.id_scope
    else:
        id_scope = check_id_scope(send.id_scope)
        if send.id is None and id_scope == "all":
            raise ValueError(f"id_scope={short_repr(id_scope)} needs an id: without one no id was used before.")
    if id_scope == "all" and alias.store is None:
        raise Unsupported(
            f"id_scope={id_scope!r} needs a store, which keeps what has ended: set up STORE in DELAYQ[{alias.name!r}]."
        )
    return id_scope


def addressed(send: Send, alias: Alias, *, is_own: bool = False) -> tuple[Header, registry.Registered | None]:
    """Return the header of a message, and its handler if this process has one. Raises like `prepare`."""
    key = send.key
    by_key = registry.by_alias.get(alias.name, {})
    handler = by_key.get(key) if type(key) is str else None
    if handler is None:
        key = check_new_name(key, "key")
        handler = by_key.get(key)
    own = header_of(handler, key, is_own)
    if handler is None and alias.options.unknown_keys == "error":
        raise registry.unknown_key(alias.name, key)
    header = _header(send, own, is_own)
    if header.more_tags and alias.store is None:
        raise Unsupported(
            f"tag={short_repr(send.tag)} has several tags, which need a store: give one tag, or set up STORE in "
            f"DELAYQ[{alias.name!r}]."
        )
    return header, handler


def body_of(data: Any, data_type: Any, alias: Alias) -> bytes:
    """Return the data as JSON bytes. Raises like `prepare`, also if there are more than `max_data` bytes."""
    body = encode_data(data, data_type)
    most = alias.options.max_data
    if len(body) > most:
        raise ValueError(
            f"data takes {len(body)} bytes as JSON, over the {most} of OPTIONS['max_data']; "
            "send a key to where it is kept, or raise the limit."
        )
    return body


def share_of(body: bytes, shares: Shares) -> str:
    """Return the share of a message with this body. Raises `ValueError` if the data lacks what `share_key` names."""
    try:
        return shares.share_of(decode_data(body))
    except DataMismatch as error:
        raise ValueError(str(error)) from None


def shared(header: Header, handler: registry.Registered, body: bytes, alias: Alias, *, is_own: bool = False) -> Header:
    """Return the header of a message with its share. Raises `Unsupported` without a store, and like `share_of`."""
    if handler.shares is None:
        return header
    if alias.store is None:
        raise Unsupported(
            f"share_key={handler.shares.share_key!r} of its handler needs a store: set up STORE in "
            f"DELAYQ[{alias.name!r}]."
        )
    share = share_of(body, handler.shares)
    if header is header_of(handler, header.key, is_own):
        return header_of(handler, header.key, is_own, share)  # the messages of a share have one header, for bulk sends
    return replace(header, share=share)


def check_has_fields(body: bytes, limits: Limits) -> None:
    """Raise `ValueError` if the data lacks what a limit names, because no worker could start the message."""
    if limits.has_keys:
        try:
            limits.values_of(decode_data(body))
        except DataMismatch as error:
            raise ValueError(str(error)) from None


@lru_cache(maxsize=4096)
def header_of(handler: registry.Registered | None, key: str, is_own: bool, share: str | None = None) -> Header:
    """Return the header of a send that leaves all choices to the handler, for a share if it has any.

    Raises `ValueError` for a key that is reserved for django-delayq itself, unless `is_own`.
    """
    if not is_own:
        check_not_own(key, "key")
    if handler is None:
        return Header(DEFAULT_QUEUE, key)
    return Header(
        lane_of(handler.queue, handler.priority),
        key,
        handler.at_most_once,
        handler.expires_ms,
        version=None if handler.version == 1 else handler.version,
        share=share,
    )


def check_options(send: Send) -> None:
    """Check what a send asks for besides its data and its due time. Raises like `send_delay_message`."""
    _header(send, Header(DEFAULT_QUEUE, send.key), is_own=False)


def _header(send: Send, own: Header, is_own: bool) -> Header:
    """Return the header of a send: `own` itself if the send changes nothing in it, else a new one."""
    if (
        send.queue is None
        and send.priority is None
        and send.at_most_once is None
        and send.expires is None
        and send.max_attempts is None
        and send.timeout is None
        and send.tag is None
        and send.trace_id is None
    ):
        return own
    tag, *more_tags = _tags(send.tag, is_own) or (None,)
    return Header(
        queue=_lane(send, own.queue),
        key=own.key,
        at_most_once=_adds_at_most_once(send) or own.at_most_once,
        expires_ms=own.expires_ms if send.expires is None else to_ms(send.expires, "expires", least_ms=1),
        max_attempts=None if send.max_attempts is None else check_max_attempts(send.max_attempts),
        timeout_ms=None if send.timeout is None else to_ms(send.timeout, "timeout", least_ms=1),
        tag=tag,
        trace_id=None if send.trace_id is None else check_new_name(send.trace_id, "trace_id"),
        more_tags=tuple(more_tags),
        version=own.version,
    )


def _tags(tag: Tags | None, is_own: bool) -> tuple[str, ...]:
    """Return the tags of a send, each once, in their order. Raises `TypeError` or `ValueError`."""
    if tag is None:
        return ()
    if isinstance(tag, str):
        return (_name(tag, "tag", is_own),)
    if not isinstance(tag, list | tuple):
        raise TypeError(f"tag={short_repr(tag)} is {type(tag).__name__}; give one str, or a list or tuple of them.")
    tags = tuple(dict.fromkeys(_name(each, "tag", is_own) for each in tag))
    if len(tags) > MOST_TAGS:
        raise ValueError(f"tag={short_repr(tag)} has {len(tags)} tags; give at most {MOST_TAGS}.")
    return tags


def _lane(send: Send, own: str) -> str:
    """Return the lane of a send, whose handler has the lane `own`."""
    if send.queue is None and send.priority is None:
        return own
    queue, priority = split_lane(own)
    return new_lane(queue if send.queue is None else send.queue, priority if send.priority is None else send.priority)


def _adds_at_most_once(send: Send) -> bool:
    return send.at_most_once is not None and check_flag(send.at_most_once, "at_most_once")


def due_ms(
    delay: Duration | None,
    at: datetime | At | None,
    window: Windows | None = None,
    spread: Duration | None = None,
    id: str = "",
) -> tuple[int, int | None, int | None]:
    """Return the delay in ms, the due time in epoch ms, and the instant in epoch ms from which a rule gave it.

    The second is None if the delay says it all, and the third if there is no rule: neither an `At` nor a window. Raises
    `TypeError` or `ValueError`, naming the value and the fix.
    """
    if at is None:
        delay_ms = 0 if delay is None else to_ms(delay, "delay")
        if window is None:
            return delay_ms if spread is None else delay_ms + spread_of(id, to_ms(spread, "spread")), None, None
    elif delay is not None:
        raise TypeError(f"delay={short_repr(delay)} and at={short_repr(at)} are both given; give one of them.")
    elif window is None and spread is None and not isinstance(at, At):
        return 0, _instant_ms(at), None
    now_ms = wall_clock_ms()  # of this machine: it is here that local times are found
    counts_from_ms: int | None
    if at is None:
        counts_from_ms = first_ms = now_ms + delay_ms
    elif isinstance(at, At):
        counts_from_ms, first_ms = now_ms, due_time_ms(at.resolve(from_ms(now_ms)))
    else:
        first_ms = max(_instant_ms(at), now_ms)
        counts_from_ms = None if window is None else first_ms
    spread_ms = 0 if spread is None else to_ms(spread, "spread")
    return 0, due_in_window_ms(first_ms, window, spread_ms, id), counts_from_ms


def rule_text(
    alias: Alias,
    counts_from_ms: int,
    at: datetime | At | None,
    window: Windows | None,
    spread: Duration | None = None,
) -> str:
    """Return the rule of a due time for the store; '' without a store, and for a rule that can't be written."""
    if alias.store is None:
        return ""
    from django_delayq.core.rules import Rule, encode  # late: most messages have none

    windows = () if window is None else tuple(check_windows(window))
    spread_ms = 0 if spread is None else to_ms(spread, "spread")
    return encode(Rule(counts_from_ms, at if isinstance(at, At) else None, windows, spread_ms)) or ""


def _instant_ms(at: datetime) -> int:
    if not settings.USE_TZ and isinstance(at, datetime) and timezone.is_naive(at):
        at = timezone.make_aware(at, timezone.get_default_timezone())
    return due_time_ms(check_aware(at, "at"))


# The caller's transaction


def must_wait(alias: Alias, on_commit: bool | None) -> bool:
    """Return whether a send has to wait for a commit: without a store, in `atomic()` on the alias's database.

    With `on_commit=False` it never has to. With a store the send is part of that transaction instead. Warns if only
    another database has an open transaction, because the caller may expect the send to be part of that one. Raises
    `TypeError` for an `on_commit` that can't apply.
    """
    if alias.store is not None:
        if on_commit is not None:
            raise TypeError(
                f"on_commit={short_repr(on_commit)}: alias {alias.name!r} has a store, so that a send commits and "
                "rolls back with the caller's transaction; leave it out."
            )
    elif on_commit is not None and not check_flag(on_commit, "on_commit"):
        return False
    if connections[alias.database].in_atomic_block:
        return alias.store is None
    if len(connections.settings) > 1:
        _warn_of_others(alias)
    return False


def _warn_of_others(alias: Alias) -> None:
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            warnings.warn(
                f"A send to {alias.name!r} takes no part in the transaction on database {connection.alias!r}: "
                f'only one on {alias.database!r} is joined (DELAYQ["{alias.name}"]["DATABASE"]).',
                RuntimeWarning,
                stacklevel=_level_of_caller(),
            )


def _level_of_caller() -> int:
    """Return the `stacklevel` with which a warning from the calling function shows the site's own line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
