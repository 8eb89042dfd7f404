"""Decide which workers poll a shard of a cluster first, where nothing is known to be due.

Each worker knows the others by their heartbeats, and ranks all of them for each node by rendezvous hashing (Thaler and
Ravishankar, 1998). All come to the same ranking without a coordinator, and a worker that joins, leaves or dies changes
only its own part. Workers with a low rank poll less often. That makes nothing late, because a nearer message wakes each
worker that would sleep past it (docs/internals/wake-up.md). Polling finds what nobody was notified of.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence

from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.shared_state import HEARTBEAT_MS
from django_delayq.core.requests import WorkerInfo

ALONE_S = 1.0
"""How often a worker polls that knows of no other or hears nothing. On a single server every worker polls as often,
because a look at all shards is one round trip."""

FIRST, FIRST_S = 3, 4.0
"""How many workers are first, and how long each leaves a shard alone, at most. It is less than a third of a lease:
after as long without maintenance Redis seems to have hung (lua/reclaim.lua), and it must not seem so after two have
died."""

OTHERS_S = 30.0
"""How long every other worker leaves a shard alone, at most."""


class PollOwnership:
    """One worker's knowledge of the others.

    It polls everywhere until it has announced itself, and while it does not hear what is published.
    """

    def __init__(self, shards: Sequence[Keys], place_of: Callable[[str], object], hears: Callable[[], bool]) -> None:
        self._shards = shards
        self._place_of = place_of
        self._hears = hears
        self._own: WorkerInfo | None = None
        self._last_seen: dict[str, float] = {}  # by the monotonic clock, of those that look for all that this one does

    def learn(self, worker: WorkerInfo, workers: Iterable[WorkerInfo], now_ms: int) -> None:
        """Take in `workers`, with which the heartbeat of `worker`, this one, was answered."""
        now = time.monotonic()
        self._own = worker
        self._last_seen = {
            other.name: now - (now_ms - other.seen_ms) / 1000
            for other in workers
            if other.name != worker.name and _serves_all(other, worker)
        }

    @property
    def are_several(self) -> bool:
        """Return whether several workers share the shards out."""
        return bool(self._others()) and self._place_of(self._shards[0].msg) is not None

    def spans_s(self, lease_ms: int) -> list[float]:
        """Return for how many seconds this worker may leave each shard alone."""
        others = self._others() if self._hears() else []
        places = [self._place_of(keys.msg) if others else None for keys in self._shards]
        spans = {place: self._span_s(places.index(place), others, lease_ms) for place in set(places) - {None}}
        return [spans.get(place, ALONE_S) for place in places]

    def _others(self) -> list[str]:
        now = time.monotonic()
        return [name for name, seen_at in self._last_seen.items() if now - seen_at < HEARTBEAT_MS / 1000]

    def _span_s(self, place: int, others: Sequence[str], lease_ms: int) -> float:
        """Return that time for a node. Its first shard names it, because workers may know it by different addresses."""
        own = _weight(place, self._own.name) if self._own else b""
        rank = sum(_weight(place, other) > own for other in others)
        lease_s = lease_ms / 1000
        return max(min(FIRST_S, lease_s / 3 - 1) if rank < FIRST else min(OTHERS_S, lease_s * 2), ALONE_S)


def _weight(place: int, worker: str) -> bytes:
    return hashlib.blake2b(f"{place} {worker}".encode(), digest_size=8).digest()


def _serves_all(worker: WorkerInfo, of: WorkerInfo) -> bool:
    """Return whether a worker serves all that another one does."""
    return set(of.queues) <= set(worker.queues) and set(of.keys) <= set(worker.keys)
