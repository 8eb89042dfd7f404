"""Tell what waits, by queue and key, and whether a worker asks for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django_delayq.brokers.base import Counts, Pause, SetCount, WorkerInfo, covering


@dataclass(frozen=True, slots=True)
class WaitingSet:
    """The messages that wait for one (queue, key).

    `parked` says that no live worker asks for it, `paused` that no worker starts it for now. `pending_capped` and
    `ready_capped` say that there may be more than were counted.
    """

    queue: str
    key: str
    pending: int
    ready: int
    next_due_ms: int | None
    lag_ms: int
    parked: bool
    paused: bool
    pending_capped: bool = False
    ready_capped: bool = False

    @property
    def capped(self) -> bool:
        """Return whether more may be waiting than were counted."""
        return self.pending_capped or self.ready_capped


def waiting_sets(
    counts: Counts, workers: Sequence[WorkerInfo] | None, pauses: Sequence[Pause]
) -> tuple[WaitingSet, ...]:
    """Return the sets in the order of queue and key. If the workers are not known, none is parked."""
    ordered = sorted(counts.waiting, key=lambda count: count.pair)
    return tuple(_waiting_set(count, counts.now_ms, workers, pauses) for count in ordered)


def is_asked_for(queue: str, key: str, workers: Iterable[WorkerInfo]) -> bool:
    """Return whether a live worker runs messages of this queue and key."""
    return any(queue in worker.queues and key in worker.keys for worker in workers)


def _waiting_set(
    count: SetCount, now_ms: int, workers: Sequence[WorkerInfo] | None, pauses: Sequence[Pause]
) -> WaitingSet:
    waits = count.pending > 0 or count.ready > 0  # else all of it runs
    return WaitingSet(
        queue=count.queue,
        key=count.key,
        pending=count.pending,
        ready=count.ready,
        next_due_ms=count.next_due_ms,
        lag_ms=0 if count.next_due_ms is None else max(now_ms - count.next_due_ms, 0),
        parked=workers is not None and waits and not is_asked_for(count.queue, count.key, workers),
        paused=bool(covering(pauses, count.queue, count.key)),
        pending_capped=count.pending_capped,
        ready_capped=count.ready_capped,
    )
