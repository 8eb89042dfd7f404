"""The verbs of the RabbitMQ broker."""

import math
import threading
import time
from collections.abc import Callable, Sequence

from amqp import Connection, Message
from asgiref.sync import sync_to_async

from django_delayq.brokers.base import (
    BATCH,
    Alarm,
    AlarmInfo,
    Ask,
    Audit,
    Capability,
    Counts,
    Info,
    OnConflict,
    Pause,
    Placed,
    Put,
    Refusal,
    ServerReport,
    T,
    WorkerInfo,
    check_batch,
    without_store,
)
from django_delayq.brokers.rabbitmq import buried, looks, meta, outgoing
from django_delayq.brokers.rabbitmq.locations import parse_location
from django_delayq.brokers.rabbitmq.names import LONGEST_S
from django_delayq.brokers.rabbitmq.receiver import Receiver
from django_delayq.conf import Alias
from django_delayq.durations import to_text
from django_delayq.errors import BrokerUnavailable, SendError, Unsupported


class _Mine(threading.local):
    """The token of the rebuild that this thread does: two threads are two callers."""

    token = ""


class RabbitMQBroker(Receiver):
    """See `django_delayq.brokers.base.Broker`. One connection publishes, another one consumes.

    `wall` and `monotonic` give seconds; tests give clocks that they move.
    """

    capabilities: frozenset[Capability] = frozenset()

    def __init__(
        self,
        alias: Alias,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(alias, wall, monotonic)
        self._mine = _Mine()

    @classmethod
    def check(cls, alias: Alias) -> None:
        parse_location(alias.location)

    def open(self) -> None:
        with self._publisher.looking():
            pass

    # Messages in

    def put(self, puts: Sequence[Put], on_conflict: OnConflict = "keep") -> list[Placed]:
        return self.begin_put(puts, on_conflict)()

    def begin_put(self, puts: Sequence[Put], on_conflict: OnConflict = "keep") -> Callable[[], list[Placed]]:
        check_batch(puts)
        if on_conflict != "keep":
            raise without_store(f"on_conflict={on_conflict!r} with RabbitMQ", "leave it out")
        now_ms = math.ceil(self._clock.wall() * 1000)  # sent at 0.9 ms, a delay of 1 ends at 2: 1 would be early
        out, placed = [], []
        for put in puts:
            due_ms = now_ms + put.delay_ms if put.at_ms is None else max(put.at_ms, now_ms)
            _check_delay(due_ms - now_ms)
            note = outgoing.new_note(put, now_ms, due_ms)
            out.append(outgoing.delayed(self._names, note, put.body, due_ms - now_ms, self._clock))
            placed.append(Placed(put.id, due_ms, created=True))
        finish = self._publisher.begin(out)

        def wait() -> list[Placed]:
            try:
                finish()
            except BrokerUnavailable as error:
                raise SendError(str(error), unknown=tuple(put.id for put in puts)) from None
            return placed

        return wait

    async def aput(self, puts: Sequence[Put], on_conflict: OnConflict = "keep") -> list[Placed]:
        return await sync_to_async(self.put, thread_sensitive=False)(puts, on_conflict)

    def put_alarms(self, alarms: Sequence[Alarm], *, within_s: float = 2.0) -> None:
        check_batch(alarms)
        self._publisher.publish(self._packed(alarms), within_s)

    def begin_rebuild(self, lock_ms: int) -> bool:
        now_ms = self._clock.now_ms()
        with self._publisher.looking() as connection:
            self._mine.token = self._register.change(
                connection, lambda entries: meta.begin_rebuild(entries, self._mine.token, now_ms, lock_ms)
            )
        return bool(self._mine.token)

    def end_rebuild(self) -> bool:
        mine, self._mine.token = self._mine.token, ""
        with self._publisher.looking() as connection:
            now_ms = self._clock.now_ms()
            return self._register.change(connection, lambda entries: meta.end_rebuild(entries, mine, now_ms))

    def acquire(self, asks: Sequence[Ask], *, lease_ms: int) -> list[Refusal | None]:
        raise without_store("A limit over all workers with RabbitMQ", "limit each worker with concurrency=")

    def give_back(self, asks: Sequence[Ask]) -> None:
        self.acquire(asks, lease_ms=0)

    # Moves by id

    def together(self, work: Callable[[], T]) -> T:
        return work()

    def cancel(self, ids: Sequence[str]) -> list[bool]:
        raise without_store("Cancelling with RabbitMQ", "let the handler look whether it is still wanted")

    async def acancel(self, ids: Sequence[str]) -> list[bool]:
        return self.cancel(ids)

    def reschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        raise without_store("Rescheduling with RabbitMQ", "let the handler snooze")

    async def areschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        return self.reschedule(ids)

    def rescue(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        with self._publisher.looking() as connection:
            return buried.rescue(connection, self._names, ids, self._clock.now_ms())

    def purge(self, ids: Sequence[str]) -> list[bool]:
        raise without_store("Removing waiting messages by id with RabbitMQ", "purge a queue with rabbitmqctl")

    def purge_errors(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        with self._publisher.looking() as connection:
            return buried.purge(connection, self._names, ids)

    # Pauses

    def pause(self, pause: Pause) -> None:
        now_ms = self._clock.now_ms()
        with self._publisher.looking() as connection:
            self._register.change(connection, lambda entries: meta.add_pause(entries, pause, now_ms))
            self._tell_of_pauses(connection)

    def resume(self, queue: str | None, key: str | None) -> bool:
        now_ms = self._clock.now_ms()
        with self._publisher.looking() as connection:
            ended = self._register.change(connection, lambda entries: meta.remove_pause(entries, queue, key, now_ms))
            self._tell_of_pauses(connection)
            return ended

    def _tell_of_pauses(self, connection: Connection) -> None:
        with connection.channel() as channel:
            channel.basic_publish_confirm(Message(""), self._names.news)

    def pauses(self) -> list[Pause]:
        with self._publisher.looking() as connection:
            return meta.pauses_of(self._register.read(connection), self._clock.now_ms())

    # Looks

    def get(self, id: str) -> Info | None:
        raise without_store("Looking a message up by its id with RabbitMQ", "keep what you need to know yourself")

    async def aget(self, id: str) -> Info | None:
        return self.get(id)

    def tagged(self, tag: str) -> list[str]:
        raise without_store("Finding messages by tag", "give ids")

    def peek(self, queue: str, count: int, key: str | None = None) -> list[Info]:
        raise without_store("Peeking with RabbitMQ", "see how many wait with delayq status")

    def errors(self, count: int, offset: int = 0) -> list[Info]:
        with self._publisher.looking() as connection:
            return buried.errors(connection, self._names, count, offset)

    def counts(self) -> Counts:
        with self._publisher.looking() as connection:
            entries = self._register.read(connection)
            self._publisher.declare([(queue, key) for queue, key in entries.sets])  # one may have been deleted
            return looks.count(connection, self._names, entries, self._clock.now_ms())

    def audit(self) -> Audit:
        raise without_store("An audit with RabbitMQ", "see what its queues hold with delayq status")

    def find_alarms(self, queue: str, key: str, pks: Sequence[str]) -> list[AlarmInfo]:
        raise Unsupported("RabbitMQ can't be asked for single alarms.")

    def alarms(self, queue: str, key: str, *, after: str = "", count: int = BATCH) -> tuple[list[AlarmInfo], str]:
        raise Unsupported("RabbitMQ can't list its alarms.")

    def announce(self, worker: WorkerInfo) -> None:
        with self._publisher.looking() as connection:
            self._register.change(connection, lambda entries: meta.announce(entries, worker, self._clock.now_ms()))

    def retire(self, worker: str) -> None:
        self._give_back()
        with self._publisher.looking() as connection:
            self._register.change(connection, lambda entries: meta.retire(entries, worker))

    def workers(self) -> list[WorkerInfo]:
        with self._publisher.looking() as connection:
            return meta.workers_of(self._register.read(connection), self._clock.now_ms())

    def report(self) -> ServerReport:
        with self._publisher.looking() as connection:
            return looks.report_on(connection, self._link.location.shown)


def _check_delay(delay_ms: int) -> None:
    if delay_ms > LONGEST_S * 1000:
        raise without_store(f"A delay of {to_text(delay_ms)}, over 8 years,", "send it later")
