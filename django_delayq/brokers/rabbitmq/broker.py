"""Use RabbitMQ as a timer: it holds the alarms of a store's rows, and delivers them when they are due."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic as real_monotonic
from typing import ClassVar

from amqp import Connection

from django_delayq.brokers.addresses import has_password, is_this_machine
from django_delayq.brokers.base import (
    BATCH,
    Alarm,
    ClaimRequest,
    Claims,
    Heard,
    MaintenanceResult,
    Pair,
    Risk,
    ServerReport,
    WorkerInfo,
    check_batch,
)
from django_delayq.brokers.rabbitmq.alarms import Clock, outgoing
from django_delayq.brokers.rabbitmq.consumer import Consumer, LeasedAlarms
from django_delayq.brokers.rabbitmq.link import Link, Waker
from django_delayq.brokers.rabbitmq.locations import DEFAULT_USER, HEARTBEAT_S, parse_location
from django_delayq.brokers.rabbitmq.names import Names
from django_delayq.brokers.rabbitmq.publishing import Publisher
from django_delayq.brokers.rabbitmq.shared_state import HELD_S
from django_delayq.brokers.rabbitmq.topology import UnavailableQueues
from django_delayq.conf import Alias
from django_delayq.core.errors import DelayqError
from django_delayq.support.translatable import text as _

OLDEST = (3, 10)
"""The first version whose quorum queues support a TTL of messages and dead-lettering at least once."""

UNWANTED_S = 1.0
"""Seconds after which the alarms of a pair that is not claimed any more are given back."""


class RabbitMQBroker:
    """A `Broker` that is its own `Timer`, `Window` and `Heartbeats` (brokers/base.py).

    One connection publishes, and another one consumes. `wall` and `monotonic` return seconds; tests pass clocks that
    they move.
    """

    needs_store: ClassVar[bool] = True
    queue = alarm_index = limiter = database = None

    def __init__(
        self,
        alias: Alias,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        location = parse_location(alias.location)
        self._names = Names(alias.options.prefix)
        self._clock = Clock(wall, monotonic)
        self._publisher = Publisher(location, self._names)
        self._link = Link(location, self._names.prefix, HEARTBEAT_S)
        self._unavailable = UnavailableQueues(location, self._names)
        self._consumer = Consumer(self._names, self._clock, self._publisher.redeclare)
        self._leases = LeasedAlarms()
        self._waker = Waker()
        self._wanted: list[Pair] = []
        self.timer = self.window = self.presence = self

    @classmethod
    def check(cls, alias: Alias) -> None:
        parse_location(alias.location)
        Names(alias.options.prefix)

    @classmethod
    def places(cls, alias: Alias) -> frozenset[str]:
        location = parse_location(alias.location)
        return frozenset({f"{location.options['host']}/{location.vhost} {alias.options.prefix}"})

    @classmethod
    def risks(cls, alias: Alias) -> list[Risk]:
        location = parse_location(alias.location)
        found = {
            Risk.PASSWORD_IN_URL: has_password(alias.location),
            Risk.CLEARTEXT: not location.options["ssl"] and not is_this_machine(location.hostname),
            Risk.DEFAULT_USER: location.user == DEFAULT_USER,
        }
        return [risk for risk, is_there in found.items() if is_there]

    def open(self) -> None:
        with self._publisher.looking():
            pass

    def close(self) -> None:
        self.wake()
        self._link.close()  # the server delivers the alarms that are held here to other workers
        self._publisher.close()

    # Alarms

    def schedule(self, alarms: Sequence[Alarm], *, within_s: float = 2.0) -> None:
        check_batch(alarms)
        self._publisher.publish([outgoing(self._names, alarm, self._clock) for alarm in alarms], within_s)

    def take_due(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        requests = [
            request
            for request in requests
            if request.count > 0 and not self._unavailable.covers((request.queue, request.key))
        ]
        pairs = [(request.queue, request.key) for request in requests]
        with self._receiving(pairs):
            for request, pair in zip(requests, pairs, strict=True):
                self._subscribe(pair, request.count)
            self._take_in()
            self._consumer.await_deliveries(pairs)
            claims = Claims([], [], self._clock.now_ms(), None)
            until = self._clock.monotonic() + lease_ms / 1000
            self._wanted = []
            for request, pair in zip(requests, pairs, strict=True):
                room = BATCH - len(claims.alarms)
                taken = list(self._consumer.subscriptions[pair].take(min(request.count, room)))
                claims.alarms += [self._leases.lease(delivery, until) for delivery in taken]
                claims.more_available = claims.more_available or len(taken) == room < request.count
                if short := request.count - len(taken):
                    self._wanted.append(pair)  # a pair that got all that it asked for is not waited for
                self._subscribe(pair, short)
            claims.more_available = claims.more_available or any(
                self._consumer.subscriptions[pair].ready for pair in pairs
            )
            claims.next_due_ms = self._next_due_ms(pairs, claims)
            return claims

    def _subscribe(self, pair: Pair, count: int) -> None:
        with self._unavailable.using(pair):
            self._consumer.subscribe(pair, min(count, BATCH))

    def _take_in(self) -> None:
        self._consumer.drain()
        self._consumer.promote_due()

    def _next_due_ms(self, pairs: Sequence[Pair], claims: Claims) -> int | None:
        if claims.more_available:
            return claims.now_ms
        ready_at = self._consumer.next_ready_at(pairs)
        return None if ready_at == math.inf else claims.now_ms + self._clock.ms_until(ready_at)

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        return pairs  # a claim asks the server about each queue anyway

    def drop(self, alarms: Sequence[Alarm], rearm: Sequence[Alarm] = ()) -> None:
        check_batch(alarms)
        check_batch(rearm)
        with self._receiving():
            if rearm:
                self._publisher.raise_if_blocked()  # claims and settlements don't wait for a blocked server
            self.schedule(rearm)  # first, so that an alarm is doubled and not lost if this process dies in between
            self._consumer.acknowledge(self._leases.end(alarms))

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        with self._receiving(self._consumer.subscriptions) as connection:
            connection.heartbeat_tick()
            self._take_in()
            lapsed = self._leases.end_lapsed(self._clock.monotonic())
            self._consumer.requeue(lapsed)
            self._consumer.requeue_unwanted(UNWANTED_S)
            result = MaintenanceResult(self._clock.now_ms(), len(lapsed), away=self._publisher.refusal())
            next_end = self._leases.next_end()
            if next_end is not None:
                result.next_lease_end_ms = result.now_ms + self._clock.ms_until(next_end)
            if not result.away:
                self._write()
        return result

    def _write(self) -> None:
        """Do the part of maintenance that writes to the server.

        Reroute strays, and declare again what may have been deleted.
        """
        if self._consumer.has_strays():
            self._publisher.reroute_strays()
        self._publisher.repair_due()

    # Sleep

    def wait(self, timeout: float) -> bool:
        until = real_monotonic() + timeout
        heard = self.pause_version
        woken = False
        while not woken and heard == self.pause_version:
            left = min(until - real_monotonic(), self._next_ready_in_s())
            if left <= 0:
                break
            with self._waker.listening() as wake:
                woken = self._consumer.sleep(wake, left)
            try:
                with self._receiving():
                    self._consumer.drain()  # alarms that have come may not be due yet, so this is no reason to claim
                    self._consumer.adjust_prefetches(self._wanted)
            except DelayqError:
                break  # the next claim raises it
        return True  # also after the whole time, because only a claim finds out that a consumer is gone

    def _next_ready_in_s(self) -> float:
        """Return the seconds until a claim may find something for the last claim's pairs; infinity if unknown."""
        with self._link.lock:
            return self._consumer.next_ready_at(self._wanted) - self._clock.monotonic()

    def wake(self) -> None:
        self._waker.wake()

    # The cursor of the alarms, and their owner

    def cursor(self) -> int | None:
        return self._publisher.shared_state().cursor

    def advance_cursor(self, alarms: Sequence[Alarm], from_ms: int | None, to_ms: int) -> int | None:
        self.schedule(alarms)
        return self._publisher.change_state(lambda state: state.advance_cursor(from_ms, to_ms))

    def set_cursor_back(self, to_ms: int) -> None:
        self._publisher.change_state(lambda state: state.set_cursor_back(to_ms))

    def owner(self, candidate: str = "", *, within_s: float = HELD_S) -> str:
        owner = self._publisher.shared_state(within_s).owner
        return owner if owner or not candidate else self._publisher.change_state(lambda state: state.own(candidate))

    @property
    def owner_key(self) -> str:
        return _(
            "the queue %(queue)s in RabbitMQ at %(address)s",
            queue=self._names.register,
            address=self._link.location.shown,
        )

    # Workers, and notices of pauses, which the tables keep

    def announce_pauses(self) -> None:
        self._publisher.notify_of_pauses()

    @property
    def pause_version(self) -> int:
        return self._consumer.pause_version

    def heartbeat(self, worker: WorkerInfo) -> Heard:
        self._publisher.change_state(lambda state: state.record(worker, self._clock.now_ms()))
        return Heard()

    def leave(self, worker: str) -> None:
        self._publisher.change_state(lambda state: state.leave(worker))

    def workers(self) -> list[WorkerInfo]:
        return self._publisher.shared_state().workers_at(self._clock.now_ms())

    def report(self) -> ServerReport:
        with self._publisher.looking() as connection:
            version = str(connection.server_properties.get("version", "0"))
        return report_of(version, self._link.location.shown)

    # The connection that consumes

    @contextmanager
    def _receiving(self, pairs: Collection[Pair] = ()) -> Iterator[Connection]:
        """Yield the connection that consumes, with the queues of these pairs declared."""
        with self._link.using() as connection:
            if not self._consumer.is_on(connection):
                self._publisher.redeclare()
                self._publisher.declare(pairs)
                self._consumer.attach(connection)
                self._leases.clear()
            elif pairs:
                self._publisher.declare(pairs)
            yield connection


def report_of(version: str, shown: str) -> ServerReport:
    """Return the report on a server of this version. `shown` is its address without the password."""
    server = f"RabbitMQ {version} ({shown})"
    durability = _("nothing that was confirmed is lost while most nodes of a quorum queue are there")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    problems: list[str] = [_("%(server)s is too old; use 3.10 or newer.", server=server)] if numbers < OLDEST else []
    return ServerReport(server, durability, problems=problems)
