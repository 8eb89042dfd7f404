"""Find the messages that were sent, and assert that there is one, or none."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import ANY

from django_delayq.api import registry
from django_delayq.api.on_commit import WaitingSend, waiting_sends
from django_delayq.api.operations import message_info
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend, Info
from django_delayq.conf import DEFAULT_ALIAS, get_alias
from django_delayq.core.message import MessageInfo, State
from django_delayq.support.units import Duration, to_ms, to_text
from django_delayq.support.validation import short_repr
from django_delayq.testing.clock import now_ms
from django_delayq.testing.timeline import messages_of

TO_THE_SECOND = timedelta(seconds=1)
MS = timedelta(milliseconds=1)
MOST_LISTED = 20


def sent_messages(key: str | None = None, *, using: str = DEFAULT_ALIAS) -> list[MessageInfo]:
    """Return the messages that wait to run, of one key or of all keys, in due order.

    With a store these are its rows, as the transaction of this thread sees them. Without one, messages that wait for
    the commit of an open transaction are included as if it were committed now, and `on_conflict` is applied. So inside
    a `TestCase` all sent messages are included, except ones that were cancelled or have run.
    """
    messages_of(using)  # raises if the alias is on no broker for tests
    backend = get_backend(using)
    waiting = {info.id: info for info in _at_broker(backend)}
    for send in waiting_sends(get_alias(using)):
        id = send.message.id
        if not _is_running(backend.queue.get(id)):
            waiting[id] = _as_if_committed(send, waiting.get(id))
    found = sorted(waiting.values(), key=lambda info: (info.due_ms, info.id))
    return [message_info(using, info) for info in found if key in (None, info.header.key)]


def assert_sent(key: str, *, data: Any = ANY, delay: Duration | None = None, using: str = DEFAULT_ALIAS) -> MessageInfo:
    """Fail unless a message of this key waits, with this `data`, due `delay` after it was sent. Return the first one.

    `data` or `delay` that is not given matches anything. `delay` may be up to a second off, so that it also fits a send
    with `at`. As in `sent_messages`, messages that were cancelled or have run don't count.

    Raises `UnknownKey` for a key that a send would refuse.
    """
    __tracebackhide__ = True
    _check_key(key, using)
    waiting = sent_messages(using=using)
    found = _matching(waiting, key, data, delay)
    if not found:
        raise AssertionError(f"No message waits {_wanted(key, data, delay)}.\n{_listed(waiting)}")
    return found[0]


def assert_not_sent(key: str, *, data: Any = ANY, delay: Duration | None = None, using: str = DEFAULT_ALIAS) -> None:
    """Fail if `assert_sent` would pass with these arguments. Raises `UnknownKey` like it."""
    __tracebackhide__ = True
    _check_key(key, using)
    if found := _matching(sent_messages(using=using), key, data, delay):
        raise AssertionError(f"A message waits {_wanted(key, data, delay)}.\n{_listed(found)}")


def _check_key(key: str, using: str) -> None:
    """Raise `UnknownKey` for a key that nobody can send: with a misspelt one `assert_not_sent` would always pass."""
    __tracebackhide__ = True
    if get_alias(using).options.unknown_keys == "error" and registry.find(using, key) is None:
        raise registry.unknown_key(using, key)


def _matching(waiting: list[MessageInfo], key: str, data: Any, delay: Duration | None) -> list[MessageInfo]:
    wanted = None if delay is None else timedelta(milliseconds=to_ms(delay, "delay"))
    return [
        info
        for info in waiting
        if info.key == key and data == info.data and (wanted is None or abs(_delay(info) - wanted) <= TO_THE_SECOND)
    ]


def _delay(info: MessageInfo) -> timedelta:
    return info.due_at - info.sent_at


def _wanted(key: str, data: Any, delay: Duration | None) -> str:
    of_data = "" if data is ANY else f", data={short_repr(data)}"
    return f"with key={key!r}{of_data}{'' if delay is None else f', delay={delay!r}'}"


def _listed(infos: list[MessageInfo]) -> str:
    lines = [
        f"  key={info.key!r}, data={short_repr(info.data)}, delay={to_text(_delay(info) / MS)!r}, id={info.id!r}"
        for info in infos[:MOST_LISTED]
    ]
    left = len(infos) - len(lines)
    return "\n".join(["These wait:" if lines else "None waits.", *lines, *([f"  and {left} more"] if left else [])])


def _at_broker(backend: Backend) -> list[Info]:
    queues = sorted({found.queue for found in backend.queue.counts().waiting})
    return [info for queue in queues for info in backend.queue.peek(queue, backend.queue.counts().totals["sent"])]


def _is_running(info: Info | None) -> bool:
    return info is not None and info.state is State.RUNNING


def _as_if_committed(send: WaitingSend, held: Info | None) -> Info:
    """Return the message that will wait with the send's id after the commit. `held` waits with that id now, if any.

    The rules of `on_conflict` are those of `Queue.enqueue`.
    """
    message, called_ms = send.message, send.called_ms
    due_ms = called_ms + message.delay_ms if message.at_ms is None else max(message.at_ms, called_ms)
    state = State.PENDING if due_ms > now_ms() else State.READY
    if held is None or send.on_conflict == "replace":
        header = replace(message.header, sent_ms=called_ms, scheduled_ms=due_ms)
        return Info(message.id, state, due_ms, header, message.body)
    if (send.on_conflict == "earliest" and due_ms < held.due_ms) or (
        send.on_conflict == "latest" and due_ms > held.due_ms
    ):
        return replace(held, state=state, due_ms=due_ms, header=replace(held.header, scheduled_ms=due_ms))
    return held
