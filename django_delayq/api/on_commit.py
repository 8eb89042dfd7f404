"""Let sends without a store wait for the commit of the caller's transaction, and emit the signals of all sends."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from asgiref.sync import sync_to_async
from django.db import connections
from django.dispatch import Signal

from django_delayq.api import registry
from django_delayq.brokers import get_backend
from django_delayq.conf import Alias
from django_delayq.core.lanes import queue_of
from django_delayq.core.message import OnConflict
from django_delayq.core.requests import BATCH, Enqueued, NewMessage
from django_delayq.signals import emit, message_sent, send_failed
from django_delayq.support.commit_hooks import last_hook
from django_delayq.support.logging import logger
from django_delayq.support.timestamps import wall_clock_ms


@dataclass(slots=True, eq=False)
class WaitingSend:
    """A send without a store that waits for the commit. `over` is True once the message has been sent or cancelled.

    `group` has the sends that were made one after another under the same savepoints. Each registers a callback for the
    commit. The first callback that runs sends all later ones of the group too, so that a loop of sends costs one round
    trip.
    """

    using: str
    message: NewMessage
    on_conflict: OnConflict
    called_ns: int  # by the monotonic clock: a delay counts from the call
    called_ms: int  # by this machine's clock, which tests move
    group: list["WaitingSend"]
    over: bool = False

    def after_commit(self) -> None:
        """Send this message and the later ones of its group. Logs errors and never raises: the commit is done."""
        if self.over:
            return
        waiting = [send for send in self.group[self.group.index(self) :] if not send.over]
        for send in waiting:
            send.over = True
            send.message.delay_ms = max(0, send.message.delay_ms - (time.monotonic_ns() - send.called_ns) // 1_000_000)
        messages = [send.message for send in waiting]
        try:
            backend = get_backend(self.using)
            enqueued = backend.queue.enqueue(messages, self.on_conflict)
        except Exception as error:
            logger.exception(
                "%s could not be sent after the commit; the first is %r (key %r).",
                "1 message" if len(messages) == 1 else f"{len(messages)} messages",
                messages[0].id,
                messages[0].header.key,
                extra={"ids": [message.id for message in messages], "using": self.using},
            )
            _emit_failed(self.using, messages, error)
        else:
            emit_sent(backend.alias, messages, enqueued)

    def reschedule(self, delay_ms: int, at_ms: int | None) -> None:
        """Change the due time. A delay counts from now."""
        self.message.delay_ms, self.message.at_ms = delay_ms, at_ms
        self.called_ns, self.called_ms = time.monotonic_ns(), wall_clock_ms()


def wait_for_commit(alias: Alias, message: NewMessage, on_conflict: OnConflict) -> None:
    """Send `message` after the commit of the open transaction on the alias's database."""
    connection = connections[alias.database]
    group = _group_to_join(alias, on_conflict)
    group.append(WaitingSend(alias.name, message, on_conflict, time.monotonic_ns(), wall_clock_ms(), group))
    connection.on_commit(group[-1].after_commit, robust=True)


def waiting_sends(alias: Alias) -> Iterator[WaitingSend]:
    """Yield the sends that wait for the commit of this thread's transaction, in the order in which they were made."""
    for entry in connections[alias.database].run_on_commit:
        send = getattr(entry[1], "__self__", None)
        if isinstance(send, WaitingSend) and send.using == alias.name and not send.over:
            yield send


def cancel_waiting(alias: Alias, ids: Iterable[str]) -> set[str]:
    """Drop the sends with these ids that wait for the commit. Return the ids that were found."""
    found = _waiting_under(alias, ids)
    for send in found:
        send.over = True
    return {send.message.id for send in found}


def reschedule_waiting(alias: Alias, ids: Iterable[str], *, delay_ms: int, at_ms: int | None) -> set[str]:
    """Change the due time of the sends with these ids that wait for the commit. Return the ids that were found."""
    found = _waiting_under(alias, ids)
    for send in found:
        send.reschedule(delay_ms, at_ms)
    return {send.message.id for send in found}


def _waiting_under(alias: Alias, ids: Iterable[str]) -> list[WaitingSend]:
    return [send for send in waiting_sends(alias) if send.message.id in ids]


def _group_to_join(alias: Alias, on_conflict: OnConflict) -> list[WaitingSend]:
    """Return the group of the last send if the next send may join it, else a new group.

    It may join if both have the same alias and `on_conflict` (but not "raise"), no other callback was registered in
    between, the same savepoints are open, and the group has fewer than `BATCH` sends.
    """
    if on_conflict == "raise":  # a duplicate must not make the sends beside it fail
        return []
    last = last_hook(connections[alias.database], WaitingSend)
    if last is None or (last.using, last.on_conflict) != (alias.name, on_conflict) or len(last.group) >= BATCH:
        return []
    return last.group


def emit_sent(alias: Alias, messages: Sequence[NewMessage], enqueued: Sequence[Enqueued]) -> None:
    """Send `message_sent` for messages that were taken; with a store, after the commit of the open transaction."""
    if not message_sent.receivers:
        return

    def emit_all() -> None:
        for message, answer in zip(messages, enqueued, strict=True):
            facts = {"due_ms": answer.due_ms, "created": answer.created, "running": answer.running}
            _emit(message_sent, alias.name, message, **facts)

    if alias.store is None:
        emit_all()
    else:
        connections[alias.database].on_commit(emit_all, robust=True)


async def aemit_sent(alias: Alias, messages: Sequence[NewMessage], enqueued: Sequence[Enqueued]) -> None:
    """Send `message_sent` like `emit_sent`, from async code. Async receivers run on the caller's event loop."""
    if message_sent.receivers:
        await sync_to_async(emit_sent)(alias, messages, enqueued)


def _emit_failed(using: str, messages: Iterable[NewMessage], error: Exception) -> None:
    """Send `send_failed` for messages that the broker may not have taken, though the transaction was committed."""
    for message in messages:
        _emit(send_failed, using, message, error=error)


def _emit(signal: Signal, using: str, message: NewMessage, **facts: object) -> None:
    header = message.header
    emit(
        signal,
        registry.find(using, header.key),
        using=using,
        id=message.id,
        key=header.key,
        queue=queue_of(header.queue),
        **facts,
    )
