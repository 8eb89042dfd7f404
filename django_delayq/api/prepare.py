"""Turn a caller's request into what a queue takes. Everything that can be wrong with it is found here."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args

from django.conf import settings
from django.utils import timezone

from django_delayq.api.registry import get_handler, unknown_key
from django_delayq.conf import DEFAULT_QUEUE, Alias
from django_delayq.core.codec import encode_data
from django_delayq.core.ids import new_id
from django_delayq.core.message import OnConflict, Send
from django_delayq.core.requests import Header, NewMessage
from django_delayq.support.timestamps import EPOCH, wall_clock_ms
from django_delayq.support.units import LONGEST_MS, Duration, to_ms
from django_delayq.support.validation import (
    check_flag,
    check_max_attempts,
    check_name,
    check_queue,
    did_you_mean,
    shown,
)

if TYPE_CHECKING:
    from django_delayq.api.handlers import Handler

_ON_CONFLICT = get_args(OnConflict)


def prepare(send: Send, alias: Alias, make_id: Callable[[], str] = new_id) -> NewMessage:
    """Return a checked message, with an id of `make_id` unless it has one. Nothing is sent or read.

    Raises `TypeError`, `ValueError` or `UnknownKey`, naming the value and the fix.
    """
    if send.on_conflict not in _ON_CONFLICT:
        raise ValueError(
            f"on_conflict={shown(send.on_conflict)} is unknown: {did_you_mean(str(send.on_conflict), _ON_CONFLICT)}"
        )
    header, data_type = addressed(send, alias)
    delay_ms, at_ms = due_ms(send.delay, send.at)
    return NewMessage(
        make_id() if send.id is None else check_name(send.id, "id"),
        header,
        body_of(send.data, data_type, alias),
        delay_ms,
        at_ms,
    )


def addressed(send: Send, alias: Alias) -> tuple[Header, Any]:
    """Return the header of a message, and the type that its data must fit. Raises as `prepare` does."""
    key = send.key
    handler = get_handler(alias.name, key) if type(key) is str else None
    if handler is None:
        key = check_name(key, "key")
        handler = get_handler(alias.name, key)
    if handler is None and alias.options.unknown_keys == "error":
        raise unknown_key(alias.name, key)
    return _header(send, _header_of(handler, key)), Any if handler is None else handler.data_type


def body_of(data: Any, data_type: Any, alias: Alias) -> bytes:
    """Return the data as it is sent. Raises as `prepare` does."""
    body = encode_data(data, data_type)
    most = alias.options.max_data
    if len(body) > most:
        raise ValueError(
            f"data={shown(data)} takes {len(body)} bytes as JSON, over the {most} of OPTIONS['max_data']; "
            "send a key to where it is kept, or raise the limit."
        )
    return body


@lru_cache(maxsize=1024)
def _header_of(handler: "Handler[Any, Any] | None", key: str) -> Header:
    if handler is None:
        return Header(DEFAULT_QUEUE, key)
    return Header(handler.queue, key, handler.at_most_once, handler.expires_ms)


def _header(send: Send, own: Header) -> Header:
    """Return the handler's own header, shared by all sends that change nothing in it, or a new one."""
    if (
        send.queue is None
        and send.at_most_once is None
        and send.expires is None
        and send.max_attempts is None
        and send.timeout is None
        and send.tag is None
        and send.trace_id is None
    ):
        return own
    return Header(
        queue=own.queue if send.queue is None else check_queue(send.queue),
        key=own.key,
        at_most_once=_adds_at_most_once(send) or own.at_most_once,
        expires_ms=own.expires_ms if send.expires is None else to_ms(send.expires, "expires", least_ms=1),
        max_attempts=None if send.max_attempts is None else check_max_attempts(send.max_attempts),
        timeout_ms=None if send.timeout is None else to_ms(send.timeout, "timeout", least_ms=1),
        tag=None if send.tag is None else check_name(send.tag, "tag"),
        trace_id=None if send.trace_id is None else check_name(send.trace_id, "trace_id"),
    )


def _adds_at_most_once(send: Send) -> bool:
    return send.at_most_once is not None and check_flag(send.at_most_once, "at_most_once")


def due_ms(delay: Duration | None, at: datetime | None) -> tuple[int, int | None]:
    """Return milliseconds from now, and the instant in epoch milliseconds that overrides them when `at` was given.

    Raises `TypeError` or `ValueError` naming the value and the fix.
    """
    if at is None:
        return (0 if delay is None else to_ms(delay, "delay")), None
    if delay is not None:
        raise TypeError(f"delay={shown(delay)} and at={shown(at)} are both given; give one of them.")
    return 0, _instant_ms(at)


def _instant_ms(at: datetime) -> int:
    if not isinstance(at, datetime):
        raise TypeError(f"at={shown(at)} is {type(at).__name__}; give an aware datetime.")
    if timezone.is_naive(at):
        if settings.USE_TZ:
            raise ValueError(f"at={at!r} is naive; give django.utils.timezone.make_aware(at).")
        at = timezone.make_aware(at, timezone.get_default_timezone())
    milliseconds = -((at - EPOCH) // timedelta(microseconds=-1000))  # rounded up: never early
    if milliseconds > wall_clock_ms() + LONGEST_MS:
        raise ValueError(f"at={at!r} is over 100 years from now; give an earlier time.")
    return milliseconds
