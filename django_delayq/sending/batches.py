"""Cutting a stream of sends into batches, each one call of a broker, and counting what became of them."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from django_delayq.brokers.base import BATCH, Placed, Put
from django_delayq.conf import Alias, get_alias
from django_delayq.errors import SendError, Unsupported
from django_delayq.sending.ids import new_ids
from django_delayq.sending.prepare import prepare
from django_delayq.sends import OnConflict, Send, SentMany
from django_delayq.values import check_count, shown

BATCH_BYTES = 4 * 1024 * 1024
"""A batch ends early when its data takes this much: 1,000 large messages at once would hold up a broker."""


@dataclass(slots=True)
class Batch:
    """Neighbours with the same alias and `on_conflict`."""

    alias: Alias
    on_conflict: OnConflict
    puts: list[Put] = field(default_factory=list)
    size: int = 0


class Batches:
    """The batches of one bulk send, one at a time, and what was answered to those before."""

    def __init__(self, batch_size: int, using: str | None) -> None:
        self.sent = SentMany()
        self._batch_size = check_count(batch_size, "batch_size")
        if batch_size > BATCH:
            raise ValueError(f"batch_size={batch_size} is over what a broker takes at once; give at most {BATCH}.")
        self._using = using
        self._make_id = new_ids().__next__
        self._batch: Batch | None = None
        self._in_flight: Sequence[Put] = ()

    def of(self, sends: Iterable[Send]) -> Iterator[Batch]:
        """Batches of `sends`, read as it goes."""
        for send in _iterable(sends):
            if full := self._add(send):
                yield full
        if self._batch:
            yield self._batch

    async def of_async(self, sends: Iterable[Send] | AsyncIterable[Send]) -> AsyncIterator[Batch]:
        """As `of`, from an async iterable too."""
        async for send in _each(sends):
            if full := self._add(send):
                yield full
        if self._batch:
            yield self._batch

    def departs(self, batch: Batch) -> list[Put]:
        """The puts of a batch that is given to the broker now: unknown until it is answered."""
        self._in_flight = batch.puts
        return batch.puts

    def answered(self, placed: Iterable[Placed]) -> None:
        """Count what the broker answered to the batch in flight."""
        self.sent.accepted += len(self._in_flight)
        self._in_flight = ()
        for answer in placed:
            self.sent.created += answer.created
            self.sent.running += answer.running

    @contextmanager
    def failures_told(self) -> Iterator[None]:
        """Turn whatever goes wrong into a `SendError` that says how far the bulk send came."""
        try:
            yield
        except Exception as error:
            if isinstance(error, Unsupported):  # the broker took none of the batch
                self._in_flight = ()
            accepted, unknown = self.sent.accepted, tuple(put.id for put in self._in_flight)
            known_until = "1 message was accepted" if accepted == 1 else f"{accepted} messages were accepted"
            if unknown:
                known_until += ", 1 is unknown" if len(unknown) == 1 else f", {len(unknown)} are unknown"
            raise SendError(f"{error} ({known_until}, the rest was not sent.)", accepted, unknown) from error

    def _add(self, send: Send) -> Batch | None:
        """Prepare a send. Gives the batch before it when that is full, or is one that it doesn't belong to."""
        if not isinstance(send, Send):
            raise TypeError(f"{shown(send)} is {type(send).__name__}; give Send(...) or handler.prepare(...).")
        alias = get_alias(self._using or send.using)
        put = prepare(send, alias, self._make_id)
        before, batch = None, self._batch
        if batch is None or not self._belongs(batch, alias, send.on_conflict):
            before, batch = batch, Batch(alias, send.on_conflict)
            self._batch = batch
        batch.puts.append(put)
        batch.size += len(put.body)
        return before

    def _belongs(self, batch: Batch, alias: Alias, on_conflict: OnConflict) -> bool:
        has_room = len(batch.puts) < self._batch_size and batch.size < BATCH_BYTES
        return has_room and batch.alias is alias and batch.on_conflict == on_conflict


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
        raise TypeError(f"sends={shown(sends)} is {type(sends).__name__}; give an iterable of Send.")
    return sends
