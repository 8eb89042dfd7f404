"""Send messages to a broker that carries them, or to the tables of a store, unless they were sent before."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import BATCH, NewMessage, Queue, Tables
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerUnavailable, SendError
from django_delayq.spark.errors import SparkError
from django_delayq.spark.write.options import WriteOptions
from django_delayq.store.bulk_copy import can_copy, copy_missing, copy_new
from django_delayq.store.database import Database
from django_delayq.store.enqueue import insert_new

T = TypeVar("T")

BATCH_BYTES = 4 * 1024 * 1024
COPY_BATCH = 10_000
_PAUSE_S = 0.5


@dataclass(slots=True)
class Taken:
    """The counts of a sink: the messages that it sent, and those that it left out.

    It leaves out a message whose id was there already or had ended.
    """

    sent: int = 0
    already_there: int = 0

    def count(self, given: int, sent: int) -> None:
        """Add a batch of `given` messages, of which `sent` were new."""
        self.sent += sent
        self.already_there += given - sent


class Sink(Protocol):
    """A sink of messages, in batches."""

    def send(self, messages: Sequence[NewMessage]) -> None:
        """Send the messages that were not sent before. It may return before all have arrived."""

    def finish(self) -> "Taken":
        """Wait until all messages have arrived, and return the counts."""


@runtime_checkable
class Ledgers(Protocol):
    """A queue that keeps the ledgers of jobs."""

    def begin_enqueue_once(self, messages: Sequence[NewMessage], job: str, keep_ms: int) -> Callable[[], int]: ...


def check_sink(alias: Alias, options: WriteOptions) -> None:
    """Raise `SparkError` if messages of this alias can't be sent from Spark. This connects to nothing."""
    if alias.store is None:
        _with_ledgers(get_backend(alias.name).queue, alias)
        _job(alias, options)


def sink_of(alias: Alias, options: WriteOptions) -> Sink:
    """Return the sink of an alias, for one task."""
    backend = get_backend(alias.name)
    if backend.store is not None:
        return _StoreSink(backend.store, options)
    return _LedgerSink(_with_ledgers(backend.queue, alias), _job(alias, options), options)


def _with_ledgers(queue: Queue, alias: Alias) -> Ledgers:
    if not isinstance(queue, Ledgers):
        raise SparkError(
            f"The broker of {alias.name!r} ({alias.broker}) keeps no ledger of what a job has sent; "
            "use the Redis broker, or a store."
        )
    return queue


def _job(alias: Alias, options: WriteOptions) -> str:
    if options.job is None:
        raise SparkError(
            f"Without a store ({alias.name!r} has none) what a job has sent is kept in a ledger, under its name: "
            "give option('job', 'reminders-2026-11'), the same whenever this job is run again."
        )
    return options.job


class _LedgerSink:
    """A sink that prepares the next batch while one is on its way."""

    def __init__(self, queue: Ledgers, job: str, options: WriteOptions) -> None:
        self._queue = queue
        self._job = job
        self._options = options
        self._taken = Taken()
        self._on_its_way: tuple[Sequence[NewMessage], Callable[[], int]] | None = None

    def send(self, messages: Sequence[NewMessage]) -> None:
        for batch in batches(messages, BATCH):
            self._arrive()
            self._on_its_way = (batch, self._begin(batch))

    def finish(self) -> Taken:
        self._arrive()
        return self._taken

    def _arrive(self) -> None:
        if self._on_its_way is not None:
            batch, wait = self._on_its_way
            self._on_its_way = None
            again = (self._begin(batch) for _ in itertools.count())
            tries = itertools.chain([wait], again)
            self._taken.count(len(batch), patiently(lambda: next(tries)(), self._options.patience_ms))

    def _begin(self, batch: Sequence[NewMessage]) -> Callable[[], int]:
        return self._queue.begin_enqueue_once(batch, self._job, self._options.ledger_ms)


class _StoreSink:
    """A sink whose batches are transactions. A pass over the window schedules the alarms.

    A batch is expected to have only new ids, unless the batch before had ids that were there already.
    """

    def __init__(self, tables: Tables, options: WriteOptions) -> None:
        self._tables = tables
        self._database: Database = tables.database
        self._patience_ms = options.patience_ms
        self._taken = Taken()
        self._copy: Callable[[Database, Sequence[NewMessage]], int] = copy_new

    def send(self, messages: Sequence[NewMessage]) -> None:
        for batch in batches(messages, COPY_BATCH):
            sent = patiently(partial(self._insert, batch), self._patience_ms)
            self._taken.count(len(batch), sent)
            self._copy = copy_new if sent == len(batch) else copy_missing

    def finish(self) -> Taken:
        self._database.connection.close()
        return self._taken

    def _insert(self, messages: Sequence[NewMessage]) -> int:
        with self._database.available():
            self._tables.note_lanes(messages)
            return (
                self._copy(self._database, messages)
                if can_copy(self._database)
                else insert_new(self._database, messages)
            )


def batches(messages: Sequence[NewMessage], most: int) -> Iterator[Sequence[NewMessage]]:
    """Yield the messages in order, at most `most` in a batch, and fewer if their data is large."""
    start, size = 0, 0
    for i, message in enumerate(messages):
        if i - start == most or size > BATCH_BYTES:
            yield messages[start:i]
            start, size = i, 0
        size += len(message.body)
    if start < len(messages):
        yield messages[start:]


def patiently(act: Callable[[], T], patience_ms: int) -> T:
    """Call `act` again and again while a broker or a database is away, up to `patience_ms`, and return its result.

    If an answer was lost, `act` sends messages a second time. Each exists once, but is counted as there already.
    """
    deadline = time.monotonic() + patience_ms / 1000
    while True:
        try:
            return act()
        except (SendError, BrokerUnavailable) as error:
            if time.monotonic() + _PAUSE_S > deadline:
                raise SparkError(f"Given up after {patience_ms} ms of trying: {error}") from error
            time.sleep(_PAUSE_S)
