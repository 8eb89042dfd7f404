"""Send many messages in few round trips, lazily and in bounded memory."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.transaction import TransactionManagementError

from django_delayq import tracing
from django_delayq.api.on_commit import aemit_sent, emit_sent
from django_delayq.api.send import must_wait, new_ids, prepare
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend
from django_delayq.conf import Alias
from django_delayq.core.errors import SendError
from django_delayq.core.message import OnConflict, Send, SentMany
from django_delayq.core.requests import BATCH, Enqueued, NewMessage
from django_delayq.support.validation import check_count, check_flag, short_repr

BATCH_BYTES = 4 * 1024 * 1024
"""A batch ends early when its data takes this many bytes: 1,000 large messages at once would hold up a broker."""


def send_delay_messages(
    sends: Iterable[Send], *, batch_size: int = BATCH, using: str | None = None, on_commit: bool | None = None
) -> SentMany:
    """Send every message of `sends`. It is read lazily: a generator of a million needs the memory of a few batches.

    Consecutive messages with the same alias and `on_conflict` are sent in batches of at most `batch_size`, each by one
    call. A `delay` counts from when its batch is sent. `using` overrides the alias of each message.

    With a store the rows are part of the caller's transaction; outside of one, each batch commits by itself.

    Without a store it fails inside `atomic()` on the alias's database, because a million messages can't wait for a
    commit in bounded memory. With `on_commit=False` it sends at once, whatever becomes of the transaction. The
    transaction around a `TestCase` does not count.

    Raises `TypeError` or `ValueError` for a `batch_size` that is no number from 1 to `BATCH`, or an `on_commit` that is
    no bool. Raises `SendError` for anything else that goes wrong, with the reason as `__cause__`: the first `accepted`
    messages were taken, those with an id in `unknown` may have been, and no later one was sent.
    """
    batches = Batches(batch_size, using)
    if on_commit is not None:
        check_flag(on_commit, "on_commit")
    # The next batch is prepared while one is on its way. A second one is not sent meanwhile, because the accepted
    # messages must be the first ones.
    on_its_way: list[tuple[Batch, Callable[[], list[Enqueued]]]] = []
    with batches.failing_as_send_error():
        try:
            for batch in batches.of(sends):
                _refuse_to_wait(batch.backend.alias, on_commit)
                _await_answer(batches, on_its_way)
                begin = batch.backend.queue.begin_enqueue
                on_its_way.append((batch, begin(batches.put_in_flight(batch), batch.on_conflict)))
        finally:
            _await_answer(batches, on_its_way)
    return batches.sent


async def asend_delay_messages(
    sends: Iterable[Send] | AsyncIterable[Send],
    *,
    batch_size: int = BATCH,
    using: str | None = None,
    on_commit: bool | None = None,
) -> SentMany:
    """Send like `send_delay_messages`, from async code. `sends` may also be an async iterable."""
    batches = Batches(batch_size, using)
    if on_commit is not None:
        check_flag(on_commit, "on_commit")
    with batches.failing_as_send_error():
        async for batch in batches.of_async(sends):
            alias = batch.backend.alias
            if on_commit is not False or alias.store is not None:  # else no transaction matters
                await sync_to_async(_refuse_to_wait)(alias, on_commit)
            enqueued = await batch.backend.queue.aenqueue(batches.put_in_flight(batch), batch.on_conflict)
            batches.record(enqueued)
            await aemit_sent(alias, batch.messages, enqueued)
    return batches.sent


def _refuse_to_wait(alias: Alias, on_commit: bool | None) -> None:
    """Raise `TransactionManagementError` for a bulk send that would have to wait for the caller's commit.

    Like `must_wait`, warn about a transaction on another database.
    """
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
    """Consecutive messages with the same alias and `on_conflict`, which one call of the backend takes."""

    backend: Backend
    on_conflict: OnConflict
    messages: list[NewMessage] = field(default_factory=list)
    size: int = 0


class Batches:
    """Cuts a stream of sends into batches, and counts what became of their messages."""

    def __init__(self, batch_size: int, using: str | None) -> None:
        self.sent = SentMany()
        self._batch_size = checked_batch_size(batch_size)
        self._using = using
        self._make_id = new_ids().__next__
        self._batch: Batch | None = None
        self._in_flight: Sequence[NewMessage] = ()
        self._followed = tracing.Followed(None)

    def of(self, sends: Iterable[Send]) -> Iterator[Batch]:
        """Yield `sends` in batches. Before it yields a batch, it reads only one send more than the batch has."""
        for send in checked_sends(sends):
            if full := self._add(send):
                yield full
        if self._batch:
            yield self._batch

    async def of_async(self, sends: Iterable[Send] | AsyncIterable[Send]) -> AsyncIterator[Batch]:
        """Yield batches like `of`, from an async iterable too."""
        async for send in _each(sends):
            if full := self._add(send):
                yield full
        if self._batch:
            yield self._batch

    def put_in_flight(self, batch: Batch) -> list[NewMessage]:
        """Mark a batch as being sent, and return its messages. Until `record` is called, their outcome is unknown."""
        self._in_flight = batch.messages
        self._followed = tracing.sending(batch.backend.alias.name, batch.messages)
        return batch.messages

    def record(self, enqueued: Iterable[Enqueued]) -> None:
        """Add the answers for the batch in flight to the totals. After this, no batch is in flight."""
        self.sent.accepted += len(self._in_flight)
        self._in_flight = ()
        self._followed.end()
        for answer in enqueued:
            self.sent.created += answer.created
            self.sent.running += answer.running
            self.sent.kept += answer.kept

    @contextmanager
    def failing_as_send_error(self) -> Iterator[None]:
        """Turn an exception in the block into a `SendError` that says which messages were taken before it."""
        try:
            yield
        except Exception as error:
            self._followed.end(error)
            raise send_error(error, self.sent.accepted, [message.id for message in self._in_flight]) from error

    def _add(self, send: Send) -> Batch | None:
        """Add a send to the current batch. If it can't join, begin a new batch, and return the one before."""
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


def send_error(error: Exception, accepted: int, in_flight: Iterable[str]) -> SendError:
    """Return the error of a bulk send: how many messages were taken before it, and the ids of those in flight."""
    unknown = tuple(in_flight)
    if isinstance(error, SendError) and not error.unknown:
        unknown = ()  # no server could be connected to
    known_until = "1 message was accepted" if accepted == 1 else f"{accepted} messages were accepted"
    if unknown:
        known_until += ", 1 is unknown" if len(unknown) == 1 else f", {len(unknown)} are unknown"
    return SendError(f"{error} ({known_until}, the rest was not sent.)", accepted, unknown)


def checked_batch_size(batch_size: int) -> int:
    """Return a `batch_size` unchanged. Raises `TypeError` or `ValueError` if it is no number from 1 to `BATCH`."""
    check_count(batch_size, "batch_size")
    if batch_size > BATCH:
        raise ValueError(f"batch_size={batch_size} is over what a broker takes at once; give at most {BATCH}.")
    return batch_size


def _await_answer(batches: Batches, on_its_way: list[tuple[Batch, Callable[[], list[Enqueued]]]]) -> None:
    while on_its_way:
        batch, wait = on_its_way.pop()
        enqueued = wait()
        batches.record(enqueued)
        emit_sent(batch.backend.alias, batch.messages, enqueued)


async def _each(sends: Iterable[Send] | AsyncIterable[Send]) -> AsyncIterator[Send]:
    if isinstance(sends, AsyncIterable):
        async for send in sends:
            yield _checked(send)
    else:
        for send in checked_sends(sends):
            yield send


def checked_sends(sends: Iterable[Send]) -> Iterator[Send]:
    """Yield the sends. Raises `TypeError` for anything else, naming the value and the fix."""
    if isinstance(sends, Send):
        raise TypeError("sends is one Send; give an iterable of them, such as [Send(...)].")
    if not isinstance(sends, Iterable):
        raise TypeError(f"sends={short_repr(sends)} is {type(sends).__name__}; give an iterable of Send.")
    for send in sends:
        yield _checked(send)


def _checked(send: Send) -> Send:
    if not isinstance(send, Send):
        raise TypeError(f"{short_repr(send)} is {type(send).__name__}; give Send(...) or handler.prepare(...).")
    return send
