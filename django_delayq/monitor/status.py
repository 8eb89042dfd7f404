"""How one alias is doing, in one frozen value."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django_delayq.brokers import get_broker
from django_delayq.brokers.base import Broker, Capability, Pause, ServerReport, SetCount, WorkerInfo, covering
from django_delayq.conf import DEFAULT_ALIAS
from django_delayq.durations import to_text
from django_delayq.errors import BrokerUnavailable
from django_delayq.store import StoredBroker


@dataclass(frozen=True, slots=True)
class WaitingSet:
    """What waits for one (queue, key). `parked`: no live worker asks for it. `paused`: no worker starts it for now."""

    queue: str
    key: str
    pending: int
    ready: int
    next_due_ms: int | None
    lag_ms: int
    parked: bool
    paused: bool


@dataclass(frozen=True, slots=True)
class Status:
    """Every figure of one alias at `now_ms`, by the broker's clock. Instants are epoch milliseconds, lengths ms.

    Suspects wait apart: they are in no set, and count as neither pending nor ready. `clock_skew_ms` is how far the
    broker's clock is at least ahead of this machine's (negative: behind), None for a broker without a clock.
    `broker_away`: the broker of a store does not answer. Then its workers are not known, and nothing is told as parked.
    """

    now_ms: int
    clock_skew_ms: int | None
    waiting: tuple[WaitingSet, ...]
    pauses: tuple[Pause, ...]
    running: int
    suspects: int
    error: int
    totals: Mapping[str, int]
    workers: tuple[WorkerInfo, ...]
    server: ServerReport
    broker_away: bool = False

    @property
    def pending(self) -> int:
        """How many messages are not due yet."""
        return sum(each.pending for each in self.waiting)

    @property
    def ready(self) -> int:
        """How many messages are due and held by nobody, parked ones included."""
        return sum(each.ready for each in self.waiting)

    @property
    def parked(self) -> tuple[WaitingSet, ...]:
        """The sets that no live worker asks for."""
        return tuple(each for each in self.waiting if each.parked)

    @property
    def next_due_ms(self) -> int | None:
        """When the earliest waiting message is due, or was."""
        return min((each.next_due_ms for each in self.waiting if each.next_due_ms is not None), default=None)

    @property
    def lag_ms(self) -> int:
        """How late the oldest ready message is; 0 when none is ready."""
        return max((each.lag_ms for each in self.waiting), default=0)


def status(using: str = DEFAULT_ALIAS) -> Status:
    """Look at everything of an alias once. Changes nothing; raises what the broker's looks raise."""
    broker = get_broker(using)
    before_ms = _wall_clock_ms()
    counts = broker.counts()
    after_ms = _wall_clock_ms()
    pauses = broker.pauses()
    away = _unanswered(broker)
    workers = [] if away else broker.workers()
    return Status(
        now_ms=counts.now_ms,
        clock_skew_ms=_skew(counts.now_ms, before_ms, after_ms) if Capability.CLOCK in broker.capabilities else None,
        waiting=tuple(
            _waiting_set(each, counts.now_ms, None if away else workers, pauses) for each in _by_name(counts.waiting)
        ),
        pauses=tuple(pauses),
        running=counts.running,
        suspects=counts.suspects,
        error=counts.error,
        totals=counts.totals,
        workers=tuple(sorted(workers, key=lambda worker: worker.name)),
        server=away or broker.report(),
        broker_away=away is not None,
    )


def _unanswered(broker: Broker) -> ServerReport | None:
    """What is to be said of a store's broker that does not answer; None for one that does."""
    if not isinstance(broker, StoredBroker):
        return None
    try:
        broker.clock.open()
    except BrokerUnavailable as error:
        after = to_text(broker.store.degraded_after)
        told = f"{error} After {after} of this workers are degraded: they go on from the tables alone, a second later."
        return ServerReport("the broker is away", "loses no message: they are in the database", problems=[told])
    return None


def is_asked_for(queue: str, key: str, workers: Iterable[WorkerInfo]) -> bool:
    """Whether a live worker runs messages of this queue and key."""
    return any(queue in worker.queues and key in worker.keys for worker in workers)


def _waiting_set(count: SetCount, now_ms: int, workers: list[WorkerInfo] | None, pauses: list[Pause]) -> WaitingSet:
    return WaitingSet(
        queue=count.queue,
        key=count.key,
        pending=count.pending,
        ready=count.ready,
        next_due_ms=count.next_due_ms,
        lag_ms=0 if count.next_due_ms is None else max(now_ms - count.next_due_ms, 0),
        parked=workers is not None and not is_asked_for(count.queue, count.key, workers),
        paused=bool(covering(pauses, count.queue, count.key)),
    )


def _by_name(counts: Iterable[SetCount]) -> list[SetCount]:
    return sorted(counts, key=lambda count: (count.queue, count.key))


def _skew(broker_ms: int, before_ms: int, after_ms: int) -> int:
    """How far the broker's clock is at least ahead of this machine's (negative: behind).

    The broker read its clock somewhere between our two readings, so that anything in between is no skew.
    """
    return broker_ms - min(max(broker_ms, before_ms), after_ms)


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
