"""The alarms that RabbitMQ delivered for one (queue, key), and how many more it may send. No I/O."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from django_delayq.brokers.base import Alarm, Pair


@dataclass(slots=True, eq=False)
class Delivery:
    """One alarm that was delivered and is not acknowledged. `ready_at` is when it is due, by the monotonic clock."""

    alarm: Alarm
    due_ms: int
    ready_at: float
    tag: int
    prefetch: "Prefetch"


@dataclass(slots=True, eq=False)
class Prefetch:
    """One consumer: the server sends messages until as many as its `credit` are not acknowledged."""

    subscription: "Subscription"
    tag: str
    credit: int
    unacknowledged: int = 0

    @property
    def is_full(self) -> bool:
        """Return whether the server may send no more."""
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
        """Make the held deliveries ready that are due at `now`."""
        while self.held and self.held[0][0] <= now:
            _, tag, delivery = heapq.heappop(self.held)
            heapq.heappush(self.ready, (delivery.due_ms, tag, delivery))

    def take(self, most: int) -> Iterator[Delivery]:
        """Take out ready deliveries, earliest first, and count them as leased."""
        for _ in range(min(most, len(self.ready))):
            self.leased += 1
            yield heapq.heappop(self.ready)[2]

    def take_all(self) -> list[Delivery]:
        """Take out all deliveries that are not leased, and count them as leased."""
        deliveries = [entry[2] for entry in (*self.ready, *self.held)]
        self.ready, self.held = [], []
        self.leased += len(deliveries)
        return deliveries
