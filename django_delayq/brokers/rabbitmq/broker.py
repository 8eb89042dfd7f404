"""The verbs of the RabbitMQ broker."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from amqp import Message
from asgiref.sync import sync_to_async

from django_delayq.brokers.base import (
    BATCH,
    Alarm,
    AlarmInfo,
    Capability,
    Counts,
    Info,
    OnConflict,
    Pause,
    Placed,
    Put,
    ServerReport,
    T,
    WorkerInfo,
    check_batch,
    without_store,
)
from django_delayq.brokers.meta import Mine
from django_delayq.brokers.rabbitmq import buried, looks, outgoing
from django_delayq.brokers.rabbitmq.locations import parse_location
from django_delayq.brokers.rabbitmq.names import LONGEST_S, Names
from django_delayq.brokers.rabbitmq.receiver import Receiver
from django_delayq.conf import Alias
from django_delayq.durations import to_text
from django_delayq.errors import BrokerUnavailable, SendError, Unsupported
from django_delayq.texts import text as _


def _needs_store(what: str, instead: str) -> Callable[..., Any]:
    """A verb that AMQP has no means for."""

    def refuse(*args: object, **options: object) -> NoReturn:
        raise without_store(what, instead)

    return refuse


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
        self._mine = Mine()

    @classmethod
    def check(cls, alias: Alias) -> None:
        parse_location(alias.location)
        Names(alias.options.prefix)

    @classmethod
    def places(cls, alias: Alias) -> frozenset[str]:
        location = parse_location(alias.location)
        return frozenset({f"{location.options['host']}/{location.vhost} {alias.options.prefix}"})

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
        mine, now_ms = self._mine.token, self._clock.now_ms()
        self._mine.token = self._publisher.change(lambda entries: entries.begin_rebuild(mine, now_ms, lock_ms))
        return bool(self._mine.token)

    def end_rebuild(self) -> bool:
        mine, self._mine.token = self._mine.token, ""
        now_ms = self._clock.now_ms()
        return self._publisher.change(lambda entries: entries.end_rebuild(mine, now_ms))

    def owner(self, candidate: str = "") -> str:
        told = self._publisher.entries().owner
        return told if told or not candidate else self._publisher.change(lambda entries: entries.own(candidate))

    @property
    def owner_key(self) -> str:
        return _("the queue %(queue)s in RabbitMQ", queue=self._names.register)

    acquire = give_back = _needs_store("A limit over all workers with RabbitMQ", "limit each worker with concurrency=")

    # Moves by id

    def together(self, work: Callable[[], T]) -> T:
        return work()

    cancel = acancel = _needs_store("Cancelling with RabbitMQ", "let the handler look whether it is still wanted")
    reschedule = areschedule = _needs_store("Rescheduling with RabbitMQ", "let the handler snooze")
    purge = _needs_store("Removing waiting messages with RabbitMQ", "empty its queue with rabbitmqctl purge_queue")

    def rescue(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        with self._publisher.looking() as connection:
            return buried.rescue(connection, self._names, ids, self._clock.now_ms())

    def purge_errors(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        with self._publisher.looking() as connection:
            return buried.purge(connection, self._names, ids)

    # Pauses

    def pause(self, pause: Pause) -> None:
        self._publisher.change(lambda entries: entries.pause(pause, self._clock.now_ms()))
        self._tell_of_pauses()

    def resume(self, queue: str | None, key: str | None) -> bool:
        now_ms = self._clock.now_ms()
        ended = self._publisher.change(lambda entries: entries.resume(queue, key, now_ms))
        self._tell_of_pauses()
        return ended

    def _tell_of_pauses(self) -> None:
        with self._publisher.looking() as connection, connection.channel() as channel:
            channel.basic_publish_confirm(Message(""), self._names.news)

    def pauses(self) -> list[Pause]:
        return self._publisher.entries().pauses_at(self._clock.now_ms())

    # Looks

    get = aget = _needs_store("Looking a message up by its id with RabbitMQ", "keep what you need to know yourself")
    tagged = _needs_store("Finding messages by tag", "give ids")
    peek = _needs_store("Peeking with RabbitMQ", "see how many wait with delayq status")
    audit = _needs_store("An audit with RabbitMQ", "see what its queues hold with delayq status")

    def errors(self, count: int, offset: int = 0) -> list[Info]:
        with self._publisher.looking() as connection:
            return buried.errors(connection, self._names, count, offset)

    def counts(self) -> Counts:
        entries = self._publisher.entries()
        with self._publisher.looking() as connection:
            self._publisher.declare(entries.sets)  # one may have been deleted
            return looks.count(connection, self._names, entries, self._clock.now_ms())

    def find_alarms(self, queue: str, key: str, pks: Sequence[str]) -> list[AlarmInfo]:
        raise Unsupported("RabbitMQ can't be asked for single alarms.")

    def alarms(self, queue: str, key: str, *, after: str = "", count: int = BATCH) -> tuple[list[AlarmInfo], str]:
        raise Unsupported("RabbitMQ can't list its alarms.")

    def announce(self, worker: WorkerInfo) -> list[Pause]:
        return self._publisher.change(lambda entries: entries.announce(worker, self._clock.now_ms()))

    def retire(self, worker: str) -> None:
        self._give_back()
        self._publisher.change(lambda entries: entries.retire(worker))

    def workers(self) -> list[WorkerInfo]:
        return self._publisher.entries().workers_at(self._clock.now_ms())

    def report(self) -> ServerReport:
        with self._publisher.looking() as connection:
            version = str(connection.server_properties.get("version", "0"))
        return looks.report_of(version, self._link.location.shown)


def _check_delay(delay_ms: int) -> None:
    if delay_ms > LONGEST_S * 1000:
        raise without_store(f"A delay of {to_text(delay_ms)}, over 8 years,", "send it later")
