"""Who looks first at a shard of a cluster where nothing is known to be due.

The workers share that out by themselves, by what their heartbeats tell and by rendezvous hashing (Thaler and
Ravishankar, 1998): each ranks them all for each node, and all come to the same. There is no coordinator, and who joins,
leaves or dies moves only what was its own. Who is not among the first looks less often. That makes nothing late: no
sleep is longer than the mark that its look has raised (docs/internals, "Wake-up"), so what is sent nearer wakes all. It
is for what nobody hears of.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from django_delayq.brokers.figures import Pause, WorkerInfo
from django_delayq.brokers.meta import HEARTBEAT_MS
from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.looks import read_workers
from django_delayq.brokers.redis.pauses import read_pauses
from django_delayq.brokers.redis.scripts import Call, Operation, load
from django_delayq.core import codec

ALONE_S = 1.0
"""How often one looks that knows of no other or hears nothing, and everyone on a single server, where a look at all
shards is one round trip."""

FIRST, FIRST_S = 3, 4.0
"""How many are first, and how often each of them looks, at most. It is less than a third of a lease: after so long
without upkeep Redis seems to have hung (lua/reclaim.lua), and it must not seem so after two of them died."""

OTHERS_S = 30.0
"""How often all others look, at most."""


class Owners:
    """What one worker knows of the others. Until it has told of itself it looks everywhere, and while it does not hear
    what is published."""

    def __init__(self, shards: Sequence[Keys], place_of: Callable[[str], object], hears: Callable[[], bool]) -> None:
        self._shards = shards
        self._place_of = place_of
        self._hears = hears
        self._own: WorkerInfo | None = None
        self._last_seen: dict[str, float] = {}  # by the monotonic clock, of those that look for all that this one does

    def announce(self, worker: WorkerInfo) -> Operation[list[Pause]]:
        """A heartbeat. Its answer tells of the others, and of the pauses in force."""
        said = asdict(worker)
        del said["seen_ms"]
        meta = self._shards[0].meta
        ((now_ms, fields),) = yield [Call(load("announce"), (meta,), (f"worker:{worker.name}", codec.dumps(said)))]
        now = time.monotonic()
        self._own = worker
        self._last_seen = {
            other.name: now - (now_ms - other.seen_ms) / 1000
            for other in read_workers(int(now_ms), fields)
            if other.name != worker.name and _serves_all(other, worker)
        }
        return read_pauses(int(now_ms), fields)

    @property
    def are_several(self) -> bool:
        """Whether they share anything out."""
        return bool(self._others()) and self._place_of(self._shards[0].msg) is not None

    def spans_s(self, lease_ms: int) -> list[float]:
        """For how long, in seconds, this worker may leave each shard alone."""
        others = self._others() if self._hears() else []
        places = [self._place_of(keys.msg) if others else None for keys in self._shards]
        spans = {place: self._span_s(places.index(place), others, lease_ms) for place in set(places) - {None}}
        return [spans.get(place, ALONE_S) for place in places]

    def _others(self) -> list[str]:
        now = time.monotonic()
        return [name for name, seen_at in self._last_seen.items() if now - seen_at < HEARTBEAT_MS / 1000]

    def _span_s(self, place: int, others: Sequence[str], lease_ms: int) -> float:
        """Of a node, named by the first of its shards: an address may be another for each worker."""
        own = _weight(place, self._own.name) if self._own else b""
        rank = sum(_weight(place, other) > own for other in others)
        lease_s = lease_ms / 1000
        return max(min(FIRST_S, lease_s / 3 - 1) if rank < FIRST else min(OTHERS_S, lease_s * 2), ALONE_S)


def _weight(place: int, worker: str) -> bytes:
    return hashlib.blake2b(f"{place} {worker}".encode(), digest_size=8).digest()


def _serves_all(worker: WorkerInfo, of: WorkerInfo) -> bool:
    """Whether a worker looks for all that another one does."""
    return set(of.queues) <= set(worker.queues) and set(of.keys) <= set(worker.keys)
