"""Consume alarms: hold them after their delivery until they are due, and acknowledge them when they are dropped.

For each (queue, key), the server delivers no more alarms than are requested, leased and held here. So alarms don't
pile up here behind a slow handler while another worker is free.

The server delivers an alarm again if it was given back, or its connection was lost. Such an alarm is ready at once if
another machine sent it. That may be early, which is harmless, because the row decides.
"""

import heapq
import math
import secrets
import socket
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from time import monotonic

from amqp import Channel, Connection, Message

from django_delayq.brokers.base import Alarm, Pair
from django_delayq.brokers.rabbitmq.alarms import Clock, Envelope, unpack
from django_delayq.brokers.rabbitmq.link import await_readable, drain
from django_delayq.brokers.rabbitmq.names import Names
from django_delayq.brokers.rabbitmq.topology import waiting
from django_delayq.support.logging import logger

MOST_HELD = 1_000
"""The most alarms of one (queue, key) that are held until they are due."""

LONGEST_HOLD_S = 2.0
"""The longest time for which an alarm is held. It needs less, because it leaves the levels shortly before it is due."""

ARRIVAL_S = 0.1
"""How long a claim that finds nothing waits for the alarms that the server says it has."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One alarm that was delivered and is not acknowledged yet.

    It may be claimed from `ready_at` on, by the monotonic clock. That may be early, but the row decides.
    """

    alarm: Alarm
    due_ms: int
    ready_at: float
    tag: int
    prefetch: "Prefetch"


@dataclass(slots=True, eq=False)
class Prefetch:
    """One AMQP consumer. The server sends it messages while fewer than `credit` of them are unacknowledged."""

    subscription: "Subscription"
    tag: str
    credit: int
    unacknowledged: int = 0

    @property
    def is_full(self) -> bool:
        """Return whether the server sends no more until a message is acknowledged."""
        return self.unacknowledged >= self.credit


@dataclass(slots=True, eq=False)
class Subscription:
    """The deliveries of one (queue, key): held until they are due, then ready to be claimed."""

    pair: Pair
    held: list[tuple[float, int, Delivery]] = field(default_factory=list)
    ready: list[tuple[int, int, Delivery]] = field(default_factory=list)
    prefetch: Prefetch | None = None
    leased: int = 0
    wanted: int = 0
    wanted_at: float = 0.0

    def hold(self, delivery: Delivery) -> None:
        """Keep a delivery until it is due."""
        heapq.heappush(self.held, (delivery.ready_at, delivery.tag, delivery))

    def promote_due(self, now: float) -> None:
        """Make ready the held deliveries that are due at `now`, a time of the monotonic clock."""
        while self.held and self.held[0][0] <= now:
            _, tag, delivery = heapq.heappop(self.held)
            heapq.heappush(self.ready, (delivery.due_ms, tag, delivery))

    def take(self, most: int) -> Iterator[Delivery]:
        """Take out at most `most` ready deliveries, earliest first, and count them as leased."""
        for _ in range(min(most, len(self.ready))):
            self.leased += 1
            yield heapq.heappop(self.ready)[2]

    def take_all(self) -> list[Delivery]:
        """Take out all deliveries that are not leased. They count as leased until they are given back."""
        deliveries = [entry[2] for entry in (*self.ready, *self.held)]
        self.ready, self.held = [], []
        self.leased += len(deliveries)
        return deliveries


class Consumer:
    """The deliveries of one connection.

    Hold the link's lock for every call but `sleep`, and pass only the link's connection.
    """

    def __init__(self, names: Names, clock: Clock, on_cancel: Callable[[], object]) -> None:
        self._names = names
        self._clock = clock
        self._on_cancel = on_cancel
        self._numbers = count()
        self._connection: Connection | None = None
        self._channel: Channel
        self._sockets: list[int | socket.socket] = []  # kept: asking a closed connection for its socket opens it again
        self._unacknowledged: dict[int, Prefetch] = {}  # by tag, in the order of delivery
        self._looked_at = deque([-math.inf, -math.inf], maxlen=2)
        self._warned: set[str] = set()
        self.subscriptions: dict[Pair, Subscription] = {}
        self.pause_version = 0
        """How many notices of pauses have come."""

    def is_on(self, connection: Connection) -> bool:
        """Return whether this connection is the one in use."""
        return self._connection is connection

    def attach(self, connection: Connection) -> None:
        """Use this connection. Forget all deliveries of the last one: the server delivers them to other consumers."""
        self._connection = connection
        self._unacknowledged, self.subscriptions, self._warned = {}, {}, set()
        self._sockets = [connection.sock]
        self._channel = connection.channel()
        queue = f"{self._names.pause_notices}.{secrets.token_urlsafe(9)}"
        self._channel.queue_declare(queue, exclusive=True, auto_delete=True)
        self._channel.queue_bind(queue, self._names.pause_notices)
        self._channel.basic_consume(queue, no_ack=True, callback=self._on_pause_notice)

    def subscribe(self, pair: Pair, wanted: int) -> None:
        """Have the server send `wanted` alarms of a pair, in addition to those that are held and leased here."""
        subscription = self.subscriptions.setdefault(pair, Subscription(pair))
        subscription.wanted, subscription.wanted_at = wanted, self._clock.monotonic()
        self._adjust_prefetch(subscription)

    def adjust_prefetches(self, pairs: Iterable[Pair]) -> None:
        """Replace the prefetches of these pairs that are full, so that the wanted alarms can come."""
        for pair in pairs:
            if subscription := self.subscriptions.get(pair):
                self._adjust_prefetch(subscription)

    def _adjust_prefetch(self, subscription: Subscription) -> None:
        """Begin a prefetch with the credit needed now, unless there is one that is not full.

        If enough alarms are ready, or too many are held, none is begun. Then a full prefetch is kept, unless its credit
        is over four times the credit needed.
        """
        prefetch, held = subscription.prefetch, len(subscription.held)
        if prefetch is not None:
            if not prefetch.is_full:
                return
            if prefetch.credit > 4 * (subscription.leased + held + subscription.wanted):
                self._cancel(subscription)
        if len(subscription.ready) < subscription.wanted and held < MOST_HELD:
            self._cancel(subscription)
            self._consume(subscription, subscription.leased + subscription.wanted + min(held, MOST_HELD - held))

    def _consume(self, subscription: Subscription, credit: int) -> None:
        prefetch = Prefetch(subscription, f"{next(self._numbers)}", min(credit, 65_535))
        self._channel.basic_qos(0, prefetch.credit, False)
        self._channel.basic_consume(
            self._names.ready(*subscription.pair),
            consumer_tag=prefetch.tag,
            callback=lambda message: self._on_message(prefetch, message),
            on_cancel=lambda tag: self._on_cancelled(prefetch),
        )
        subscription.prefetch = prefetch

    def _cancel(self, subscription: Subscription) -> None:
        """Have the server send no more alarms for a subscription."""
        self.drain()  # may show that its queue is gone, and with it the prefetch
        if subscription.prefetch is not None:
            self._channel.basic_cancel(subscription.prefetch.tag)
            subscription.prefetch = None

    def drain(self) -> None:
        """Handle what the server has sent, without waiting for more."""
        drain(self._channel.connection)

    def await_deliveries(self, pairs: Collection[Pair]) -> None:
        """Wait up to `ARRIVAL_S` for a ready alarm, while the server has alarms of these pairs to deliver."""
        until = monotonic() + ARRIVAL_S
        while not any(self.subscriptions[pair].ready for pair in pairs) and monotonic() < until:
            left = sum(self.waiting(pair) for pair in pairs)
            self.flush()
            self.promote_due()
            if not left:
                return

    def flush(self) -> None:
        """Handle all that the server has sent before this call.

        It sends a request and reads up to the reply, because the server sends the reply last. Without that, messages
        may still be on their way although their queue is empty.
        """
        self._channel.basic_qos(0, 1, False)  # only for its reply: it does not concern consumers that exist already
        self.drain()

    def waiting(self, pair: Pair) -> int:
        """Return how many alarms of a pair are at the server and not delivered to any consumer."""
        return waiting(self._channel, self._names.ready(*pair))

    def promote_due(self) -> None:
        """Make the held deliveries ready that are due now."""
        now = self._clock.monotonic()
        for subscription in self.subscriptions.values():
            subscription.promote_due(now)

    def has_strays(self) -> bool:
        """Return whether there are messages whose queue did not exist when they left the levels."""
        return waiting(self._channel, self._names.stray) > 0

    def acknowledge(self, deliveries: Iterable[Delivery]) -> None:
        """Have the server forget leased alarms.

        All those that were delivered before every other unacknowledged alarm take one AMQP frame together. Each of the
        rest takes a frame of its own.
        """
        ended = {delivery.tag for delivery in deliveries}
        last = 0
        for tag in self._unacknowledged:
            if tag not in ended:
                break
            last = tag
        if last:
            self._channel.basic_ack(last, multiple=True)
        for tag in sorted(ended):
            self._note_over(tag)
            if tag > last:
                self._channel.basic_ack(tag)

    def requeue(self, deliveries: Iterable[Delivery]) -> None:
        """Have the server deliver leased alarms again, to any consumer."""
        for delivery in deliveries:
            self._note_over(delivery.tag)
            self._channel.basic_reject(delivery.tag, requeue=True)

    def _note_over(self, tag: int) -> None:
        prefetch = self._unacknowledged.pop(tag)
        prefetch.unacknowledged -= 1
        prefetch.subscription.leased -= 1

    def requeue_unwanted(self, idle_s: float) -> None:
        """Requeue all alarms of each pair that has ready ones, and that was not requested for `idle_s` seconds.

        The server sends no more for such a pair until it is requested. A pair that was requested after the call before
        the last one keeps its alarms, because a memory alarm of the server may have kept the worker from claiming.
        """
        now = self._clock.monotonic()
        before = min(now - idle_s, self._looked_at[0])
        self._looked_at.append(now)
        for subscription in self.subscriptions.values():
            if subscription.ready and subscription.wanted_at <= before:
                self._cancel(subscription)
                self.requeue(subscription.take_all())

    def sleep(self, wake: int, timeout: float) -> bool:
        """Wait, without the lock, until the server sends something or the descriptor `wake` can be read.

        Return whether there is a reason to claim: `wake`, or a connection that this process has closed meanwhile.
        """
        try:
            return wake in await_readable([wake, *self._sockets], timeout)
        except (OSError, ValueError):
            return True

    def next_ready_at(self, pairs: Iterable[Pair]) -> float:
        """Return when the next alarm of these pairs is due by the monotonic clock; infinity if none is here.

        If one is ready, return the present time of that clock.
        """
        found = [subscription for pair in pairs if (subscription := self.subscriptions.get(pair))]
        if any(subscription.ready for subscription in found):
            return self._clock.monotonic()
        return min((subscription.held[0][0] for subscription in found if subscription.held), default=math.inf)

    def _on_pause_notice(self, message: Message) -> None:
        self.pause_version += 1

    def _on_cancelled(self, prefetch: Prefetch) -> None:
        if prefetch.subscription.prefetch is prefetch:
            prefetch.subscription.prefetch = None  # its queue or its node is gone
        self._on_cancel()

    def _on_message(self, prefetch: Prefetch, message: Message) -> None:
        envelope = unpack(message)
        if envelope is None:
            self._refuse(prefetch.subscription.pair, message)
            return
        tag = message.delivery_tag
        self._unacknowledged[tag] = prefetch
        prefetch.unacknowledged += 1
        ready_at = self._ready_at(envelope, redelivered=bool(message.delivery_info["redelivered"]))
        alarm = Alarm(*prefetch.subscription.pair, envelope.id)
        prefetch.subscription.hold(Delivery(alarm, envelope.due_ms, ready_at, tag, prefetch))

    def _refuse(self, pair: Pair, message: Message) -> None:
        """Have the server move a message that is no alarm to the error queue: with RabbitMQ, workers run only rows."""
        self._channel.basic_reject(message.delivery_tag, requeue=False)
        self._warn_once(
            "RabbitMQ's queue %r holds messages that are no alarms: they are moved to the queue %r, where nobody reads"
            " them. Those of a django-delayq that had no store run with that version only.",
            self._names.ready(*pair), self._names.error,
        )  # fmt: skip

    def _ready_at(self, envelope: Envelope, *, redelivered: bool) -> float:
        """Return when an alarm may be claimed. If that is early, its row is not due yet and gets another alarm."""
        now = self._clock.monotonic()
        if not envelope.clock or envelope.clock != self._clock.name:
            return now if redelivered else now + min(envelope.hold_ms / 1000, LONGEST_HOLD_S)
        if envelope.due_s <= now + LONGEST_HOLD_S:
            return envelope.due_s
        self._warn_once(
            "RabbitMQ handed on an alarm %g s early: the clock of one of its nodes has jumped ahead. No message is"
            " early for it: the rows decide.",
            round(envelope.due_s - now, 1),
        )  # fmt: skip
        return now

    def _warn_once(self, text: str, *arguments: object) -> None:
        """Log a warning, once for each connection."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text, *arguments)


_Name = tuple[str, str, str]


def _name(alarm: Alarm) -> _Name:
    return alarm.queue, alarm.key, alarm.pk


class LeasedAlarms:
    """The alarms that are leased, each with its AMQP deliveries. A row may have two alarms: they share one lease."""

    def __init__(self) -> None:
        self._deliveries: dict[_Name, list[Delivery]] = {}
        self._ends: dict[_Name, float] = {}  # by the monotonic clock

    def lease(self, delivery: Delivery, until: float) -> Alarm:
        """Lease one delivery, and return its alarm."""
        name = _name(delivery.alarm)
        self._deliveries.setdefault(name, []).append(delivery)
        self._ends.setdefault(name, until)
        return delivery.alarm

    def end(self, alarms: Iterable[Alarm]) -> list[Delivery]:
        """End the leases of these alarms, and return their deliveries."""
        return [delivery for alarm in alarms for delivery in self._end(_name(alarm))]

    def end_lapsed(self, now: float) -> list[Delivery]:
        """End the leases that have run out, and return their deliveries."""
        lapsed = [name for name, end in self._ends.items() if end <= now]
        return [delivery for name in lapsed for delivery in self._end(name)]

    def _end(self, name: _Name) -> list[Delivery]:
        self._ends.pop(name, None)
        return self._deliveries.pop(name, [])

    def next_end(self) -> float | None:
        """Return when the first lease runs out by the monotonic clock; None if there is no lease."""
        return min(self._ends.values(), default=None)

    def clear(self) -> None:
        """Forget all leases of alarms, because their connection is gone and the server delivers them to others.

        The leases of their rows are not affected.
        """
        self._deliveries.clear()
        self._ends.clear()
