"""Prefetch messages: a buffer for each handler, and the executor that owns it."""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import Pair, Transition
from django_delayq.worker.leases import Lease, Leases
from django_delayq.worker.options import Options
from django_delayq.worker.plan import BufferState, ExecutorState, Handlers, concurrency_of
from django_delayq.worker.settler import Settler

TIME_SLICE_S = 0.020
"""How long a slot stays with one buffer, in seconds. A buffer holds about this much work for each of its slots."""
MAX_PER_SLOT = 256
"""The most messages to prefetch for one slot."""
MAX_PER_SLOT_SHARED = 192
"""The same while several shares have messages: one whose turn comes waits for what was prefetched before it."""
FEW_PART = 4
"""At most this part of the leases of a claim goes before those that wait."""


@dataclass(slots=True, eq=False)
class PrefetchBuffer:
    """The leases of one handler that wait for a slot, and the handler's pace. Only its executor changes it."""

    handler: Handler[Any, Any]
    subscriptions: Sequence[Pair]
    """The (queue, key) pairs that the buffer claims from."""
    concurrency: int
    leases: deque[Lease] = field(default_factory=deque)
    active: int = 0
    """How many slots work for the buffer."""
    ended: int = 0
    """How many of its messages, or batches, have run."""
    mean_s: float | None = None
    """The mean of recent run times, in seconds; None while unknown."""
    has_at_most_once: bool = False
    """Whether the last claim gave at-most-once messages: there may be more of them, so nothing is claimed ahead."""
    more_available: bool = False
    """Whether the last claim may have left something behind. If so, a slot that becomes free is worth another claim."""
    refill_at: int = -1
    """The number of waiting leases at which to claim more; -1 for never."""
    last_snapshot: tuple[int, int] = (0, 0)
    """`ended` and the number of waiting leases at the last claim."""
    is_roomy: bool = False
    """Whether its limits refuse nothing lately, and leave room for messages that are claimed ahead."""
    added_at: float = 0.0
    """When leases were last added, by the monotonic clock."""
    batch: int = 1
    """How many messages one run takes at most."""
    wait_s: float = 0.0
    """How long a batch that is not full waits for more messages, in seconds."""
    must_start: bool = False
    """Whether an at-most-once message waits for its batch: leased, it must start at once."""
    keys: Sequence[str] = field(init=False)
    has_several_shares: bool = False
    """Whether its leases were of several shares when some were last put in."""

    def __post_init__(self) -> None:
        self.keys = tuple(dict.fromkeys(key for _, key in self.subscriptions))

    def state(self, available: int) -> BufferState:
        """Return a snapshot for planning. `available` is how many more slots the buffer may get."""
        return BufferState(
            self.handler.key,
            self.keys,
            self.concurrency,
            self.max_slots,
            available,
            self.active,
            len(self.leases),
            self.prefetch_per_slot * self.batch,
            self.is_draining,
            self.is_idle_only,
            self.added_at,
            self.batch,
            self.handler.shares,
        )

    def put(self, leases: Sequence[Lease]) -> None:
        """Put leases behind those that wait. Those of shares of which nothing waits come first, if they are few.

        They must not hold up again and again what waits.
        """
        if self.handler.shares is None:
            self.leases.extend(leases)
            return
        waiting = {lease.claimed.share for lease in list(self.leases)}
        shares = {lease.claimed.share for lease in leases}
        self.has_several_shares = len(waiting | shares) > 1
        new = shares - waiting if self.has_several_shares else ()
        first = [lease for lease in leases if lease.claimed.share in new] if new else []
        if first and len(first) * FEW_PART <= len(leases):
            self.leases.extendleft(reversed(first))
            leases = [lease for lease in leases if lease.claimed.share not in new]
        self.leases.extend(leases)

    def batch_starts_at(self) -> float:
        """Return when its next batch may start, by the monotonic clock; infinity if nothing waits.

        A full batch starts at once, and so does an at-most-once message: it must not wait once it is leased.
        """
        try:
            first = self.leases[0]
        except IndexError:  # nothing waits, or a slot was faster
            return math.inf
        if len(self.leases) >= self.batch or self.must_start:
            return 0.0
        return first.claimed_at + self.wait_s

    @property
    def max_slots(self) -> int:
        """Return how many of its messages may run at once: its concurrency, or the handler's limit if that is lower."""
        limits = self.handler.limits
        most = None if limits is None else limits.most_of_all
        return self.concurrency if most is None else min(self.concurrency, most)

    @property
    def is_idle_only(self) -> bool:
        """Return whether to claim only for idle slots, because a message that is leased must start at once."""
        limits = self.handler.limits
        return self.handler.at_most_once or (limits is not None and not self.is_roomy and limits.most_ahead == 0)

    @property
    def is_draining(self) -> bool:
        """Return whether its slots made progress since the last claim and will soon be free, as the handler is fast."""
        ended, waiting = self.last_snapshot
        return self.prefetch_per_slot > 1 and (self.ended != ended or len(self.leases) < waiting)

    @property
    def prefetch_per_slot(self) -> int:
        """Return how many messages, or batches, one slot gets through in a time slice."""
        if self.has_at_most_once or self.mean_s is None:
            return 1
        if self.batch > 1:  # a second batch is enough: it is claimed while the first runs
            return 2 if self.mean_s * 2 <= TIME_SLICE_S else 1
        limits = self.handler.limits
        most = MAX_PER_SLOT_SHARED if self.has_several_shares else MAX_PER_SLOT
        if limits is not None and not self.is_roomy:
            most = min(limits.most_ahead // self.max_slots, most)
        return int(max(min(TIME_SLICE_S / max(self.mean_s, 1e-6), most), 1))

    def note_run(self, count: int, seconds: float) -> None:
        """Count `count` runs that took `seconds` in all."""
        self.ended += count
        mean = seconds / count
        # A slow run counts in full, because what was prefetched for a fast handler would wait behind it.
        self.mean_s = mean if self.mean_s is None or mean > self.mean_s else 0.7 * self.mean_s + 0.3 * mean

    def note_claim(
        self, *, saturated: bool = False, more_available: bool = False, has_at_most_once: bool = False
    ) -> None:
        """Note a claim: whether it gave all that was asked for, and whether it may have left something behind."""
        waiting = len(self.leases)
        self.last_snapshot = (self.ended, waiting)
        self.has_at_most_once = has_at_most_once
        self.refill_at = waiting // 2 if saturated and self.prefetch_per_slot > 1 else -1
        self.more_available = saturated or more_available

    def note_stall(self) -> None:
        """Prefetch nothing for busy slots until a slot makes progress, because something has waited too long."""
        self.last_snapshot = (self.ended, len(self.leases))


Run = Callable[[Lease], Transition | None]
"""A function that runs one message and returns how its lease ends; None leaves the lease to lapse."""


class Executor(ABC):
    """The slots that run the messages of some handlers, and the buffers in which the messages wait.

    `wake` ends the loop's sleep, because a slot is free for which something may be claimed.
    """

    def __init__(
        self, buffers: Sequence[PrefetchBuffer], slots: int, leases: Leases, settler: Settler, wake: Callable[[], None]
    ) -> None:
        self.buffers = buffers
        self.slots = slots
        """How many messages run at once at most."""
        self._leases = leases
        self._settler = settler
        self._wake = wake

    @property
    @abstractmethod
    def running(self) -> int:
        """Return how many slots run a message or are about to."""

    @property
    @abstractmethod
    def idle(self) -> int:
        """Return how many slots are idle and have no message waiting for them; that many more would start at once."""

    @abstractmethod
    def state(self) -> ExecutorState:
        """Return a snapshot for planning a claim.

        From now until `end_claim`, each slot that becomes free wakes the loop for another claim.
        """

    @abstractmethod
    def offer(self, buffer: PrefetchBuffer) -> None:
        """Let slots start the leases that wait in a buffer, as soon as they are free."""

    @abstractmethod
    def close(self, timeout: float) -> None:
        """End every thread once it is idle, and wait for that for at most `timeout` seconds.

        The process must not exit while they run: a library that closes a connection just then may crash it.
        """

    def _states(self, available: Iterable[int]) -> list[BufferState]:
        """Return a snapshot of each buffer for the claim that follows; `available` has the slots that each may get."""
        for buffer in self.buffers:
            buffer.more_available = True
        return [buffer.state(slots) for buffer, slots in zip(self.buffers, available, strict=True)]

    def add(self, buffer: PrefetchBuffer, leases: Sequence[Lease]) -> None:
        """Put leases into a buffer, and offer them to its slots."""
        if leases:
            buffer.added_at = monotonic()
            buffer.put(leases)
            self.offer(buffer)

    def end_claim(
        self,
        buffer: PrefetchBuffer,
        leases: Sequence[Lease],
        *,
        more_available: bool,
        saturated: bool = False,
        has_at_most_once: bool = False,
    ) -> None:
        """Put what a claim gave into a buffer, and note how the claim ended (see `PrefetchBuffer.note_claim`)."""
        buffer.must_start |= has_at_most_once
        self.add(buffer, leases)
        buffer.note_claim(saturated=saturated, more_available=more_available, has_at_most_once=has_at_most_once)

    def release_unstarted(self, claimed_before: float) -> None:
        """Release the leases that were claimed before `claimed_before` (monotonic) and that no slot has started.

        While a batch waits for more messages, none of its leases counts as unstarted.
        """
        unstarted = [
            lease for buffer in self.buffers for lease in _take_unstarted(buffer, claimed_before - buffer.wait_s)
        ]
        if unstarted:
            self._settler.release(unstarted)
            for buffer in self.buffers:
                buffer.note_stall()

    def release_paused(self, is_paused: Callable[[Lease], bool]) -> None:
        """Release the leases that no slot has started and whose queue or key is paused."""
        for buffer in self.buffers:
            for lease in list(buffer.leases):
                if is_paused(lease):
                    with suppress(ValueError):  # a slot was faster
                        buffer.leases.remove(lease)
                        self._settler.release([lease])

    def _next(self, buffer: PrefetchBuffer) -> Lease | None:
        """Return the next lease of a buffer, or None if it is empty. Release leases that may not start any more.

        It runs for each message, so it takes no lock: `deque.popleft` and `append` are atomic.
        """
        leases = buffer.leases
        while leases:
            try:
                lease = leases.popleft()
            except IndexError:  # another slot was faster
                break
            if len(leases) <= buffer.refill_at:
                buffer.refill_at = -1
                self._wake()
            if lease.may_start(monotonic()):
                return lease
            self._settler.release([lease])
        return None

    def _next_batch(self, buffer: PrefetchBuffer) -> list[Lease]:
        """Return the leases of the next batch of a buffer; none if its time has not come."""
        batch: list[Lease] = []
        if buffer.batch_starts_at() > monotonic():
            return batch
        while len(batch) < buffer.batch and (lease := self._next(buffer)) is not None:
            batch.append(lease)
        buffer.must_start &= bool(buffer.leases)
        return batch

    def _end(self, lease: Lease, transition: Transition | None, ended_at: float) -> None:
        """Settle a lease by its transition; None leaves it to lapse."""
        lease.ended = True
        if transition is None:
            self._leases.remove([lease])
        else:
            self._settler.add(lease, transition, urgent=ended_at - lease.started_at >= TIME_SLICE_S)


def _take_unstarted(buffer: PrefetchBuffer, claimed_before: float) -> list[Lease]:
    taken = []
    while buffer.leases:
        try:
            lease = buffer.leases.popleft()
        except IndexError:  # a slot was faster
            break
        if lease.claimed_at >= claimed_before:
            buffer.leases.appendleft(lease)
            break
        taken.append(lease)
    return taken


def buffers_of(
    handlers: Handlers, queues: Sequence[str], options: Options, *, in_batches: bool = True
) -> list[PrefetchBuffer]:
    """Return a buffer for each handler. It claims from every queue, because `send` may put any key into any queue.

    A worker that drains waits for nothing: what is due is there. Suspects are not run `in_batches`.
    """
    return [
        PrefetchBuffer(
            handler,
            [(queue, key) for queue in queues for key in (handler.key, *handler.former_keys)],
            concurrency_of(handler, options),
            batch=(handler.batch or 1) if in_batches else 1,
            wait_s=handler.wait_ms / 1000 if in_batches and not options.drain else 0.0,
        )
        for handler in dict.fromkeys(handlers)
    ]
