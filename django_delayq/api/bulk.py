"""Send many messages in few round trips, lazily and in bounded memory."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.transaction import TransactionManagementError

from django_delayq.api.on_commit import atell_sent, tell_sent
from django_delayq.api.send import must_wait, new_ids, prepare
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend
from django_delayq.conf import Alias
from django_delayq.core.errors import SendError
from django_delayq.core.message import OnConflict, Send, SentMany
from django_delayq.core.requests import BATCH, Enqueued, NewMessage
from django_delayq.support.validation import check_count, check_flag, short_repr

BATCH_BYTES = 4 * 1024 * 1024
"""A batch ends early when its data takes this much: 1,000 large messages at once would hold up a broker."""


def send_delay_messages(
    sends: Iterable[Send], *, batch_size: int = BATCH, using: str | None = None, on_commit: bool | None = None
) -> SentMany:
    """Send every message of `sends`, which is read as it goes: a generator of a million takes the memory of a batch.

    Each batch of at most `batch_size` is one call of the broker; it holds neighbours with the same alias and
    `on_conflict`. A `delay` counts from when its batch is sent. `using` overrides the alias of each.

    With a store the rows are part of the caller's transaction; outside of one, each batch commits by itself.

    Without a store it raises inside `atomic()` on the alias's database, because a million can't wait for a commit in
    bounded memory; `on_commit=False` sends at once, whatever becomes of the transaction. The transaction around a
    `TestCase` does not count.

    Raises `SendError` for whatever goes wrong on the way, with its reason as `__cause__`: the first `accepted` messages
    were taken, `unknown` are the ids of the batch in flight, and nothing after those was sent.
    """
    batches = Batches(batch_size, using)
    if on_commit is not None:
        check_flag(on_commit, "on_commit")
    # While one batch is on its way the next is made ready; never two, so that a failure stays a prefix.
    on_its_way: list[tuple[Batch, Callable[[], list[Enqueued]]]] = []
    with batches.failures_told():
        try:
            for batch in batches.of(sends):
                _refuse_to_wait(batch.backend.alias, on_commit)
                _arrive(batches, on_its_way)
                begin = batch.backend.queue.begin_enqueue
                on_its_way.append((batch, begin(batches.departs(batch), batch.on_conflict)))
        finally:
            _arrive(batches, on_its_way)
    return batches.sent


async def asend_delay_messages(
    sends: Iterable[Send] | AsyncIterable[Send],
    *,
    batch_size: int = BATCH,
    using: str | None = None,
    on_commit: bool | None = None,
) -> SentMany:
    """Send as `send_delay_messages` does, from async code and also from an async iterable."""
    batches = Batches(batch_size, using)
    if on_commit is not None:
        check_flag(on_commit, "on_commit")
    with batches.failures_told():
        async for batch in batches.of_async(sends):
            alias = batch.backend.alias
            if on_commit is not False or alias.store is not None:  # else there is nothing to look at in another thread
                await sync_to_async(_refuse_to_wait)(alias, on_commit)
            enqueued = await batch.backend.queue.aenqueue(batches.departs(batch), batch.on_conflict)
            batches.answered(enqueued)
            await atell_sent(alias, batch.messages, enqueued)
    return batches.sent


def _refuse_to_wait(alias: Alias, on_commit: bool | None) -> None:
    """Refuse a bulk send that would have to wait for the caller's commit; warn of a transaction on another database."""
    # TestCase marks its own block, as it does for atomic(durable=True).
    if must_wait(alias, on_commit) and not getattr(
        connections[alias.database].atomic_blocks[-1], "_from_testcase", False
    ):
        raise TransactionManagementError(
            f"A bulk send can't wait for the commit on database {alias.database!r}; "
            "call it outside atomic(), or with on_commit=False to send at once."
        )


@dataclass(slots=True)
class Batch:
    """Neighbours with the same alias and `on_conflict`."""

    backend: Backend
    on_conflict: OnConflict
    messages: list[NewMessage] = field(default_factory=list)
    size: int = 0


class Batches:
    """Cuts a stream of sends into batches, each one call of a broker, and counts what became of them."""

    def __init__(self, batch_size: int, using: str | None) -> None:
        self.sent = SentMany()
        self._batch_size = check_count(batch_size, "batch_size")
        if batch_size > BATCH:
            raise ValueError(f"batch_size={batch_size} is over what a broker takes at once; give at most {BATCH}.")
        self._using = using
        self._make_id = new_ids().__next__
        self._batch: Batch | None = None
        self._in_flight: Sequence[NewMessage] = ()

    def of(self, sends: Iterable[Send]) -> Iterator[Batch]:
        """Yield `sends` in batches, and read them no further than that."""
        for send in _iterable(sends):
            if full := self._add(send):
                yield full
        if self._batch:
            yield self._batch

    async def of_async(self, sends: Iterable[Send] | AsyncIterable[Send]) -> AsyncIterator[Batch]:
        """Yield batches as `of` does, from an async iterable too."""
        async for send in _each(sends):
            if full := self._add(send):
                yield full
        if self._batch:
            yield self._batch

    def departs(self, batch: Batch) -> list[NewMessage]:
        """Return the messages of a batch to send now. Until the queue answers, their outcome is unknown."""
        self._in_flight = batch.messages
        return batch.messages

    def answered(self, enqueued: Iterable[Enqueued]) -> None:
        """Count what the broker answered to the batch in flight."""
        self.sent.accepted += len(self._in_flight)
        self._in_flight = ()
        for answer in enqueued:
            self.sent.created += answer.created
            self.sent.running += answer.running

    @contextmanager
    def failures_told(self) -> Iterator[None]:
        """Turn whatever goes wrong in the block into a `SendError` that says how far the bulk send came."""
        try:
            yield
        except Exception as error:
            accepted, unknown = self.sent.accepted, tuple(message.id for message in self._in_flight)
            known_until = "1 message was accepted" if accepted == 1 else f"{accepted} messages were accepted"
            if unknown:
                known_until += ", 1 is unknown" if len(unknown) == 1 else f", {len(unknown)} are unknown"
            raise SendError(f"{error} ({known_until}, the rest was not sent.)", accepted, unknown) from error

    def _add(self, send: Send) -> Batch | None:
        """Prepare a send. Return the batch before it when that one is full, or when the send doesn't belong to it."""
        if not isinstance(send, Send):
            raise TypeError(f"{short_repr(send)} is {type(send).__name__}; give Send(...) or handler.prepare(...).")
        backend = get_backend(self._using or send.using)
        message = prepare(send, backend.alias, self._make_id)
        before, batch = None, self._batch
        if batch is None or not self._belongs(batch, backend, send.on_conflict):
            before, batch = batch, Batch(backend, send.on_conflict)
            self._batch = batch
        batch.messages.append(message)
        batch.size += len(message.body)
        return before

    def _belongs(self, batch: Batch, backend: Backend, on_conflict: OnConflict) -> bool:
        has_room = len(batch.messages) < self._batch_size and batch.size < BATCH_BYTES
        return has_room and batch.backend is backend and batch.on_conflict == on_conflict


def _arrive(batches: Batches, on_its_way: list[tuple[Batch, Callable[[], list[Enqueued]]]]) -> None:
    while on_its_way:
        batch, wait = on_its_way.pop()
        enqueued = wait()
        batches.answered(enqueued)
        tell_sent(batch.backend.alias, batch.messages, enqueued)


async def _each(sends: Iterable[Send] | AsyncIterable[Send]) -> AsyncIterator[Send]:
    if isinstance(sends, AsyncIterable):
        async for send in sends:
            yield send
    else:
        for send in _iterable(sends):
            yield send


def _iterable(sends: Iterable[Send]) -> Iterable[Send]:
    if isinstance(sends, Send):
        raise TypeError("sends is one Send; give an iterable of them, such as [Send(...)].")
    if not isinstance(sends, Iterable):
        raise TypeError(f"sends={short_repr(sends)} is {type(sends).__name__}; give an iterable of Send.")
    return sends
