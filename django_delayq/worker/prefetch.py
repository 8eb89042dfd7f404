"""Prefetch messages: a lease for each, and a buffer for each handler."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import Claimed, Pair, PermitRequest
from django_delayq.worker.plan import BufferState

TIME_SLICE_S = 0.020
"""A slot leaves a buffer after this long, and a buffer holds about this much work for each of its slots."""
MAX_PER_SLOT = 64


@dataclass(slots=True, eq=False)
class Lease:
    """The right to work on one message, as this process knows it. Times in seconds are monotonic.

    `held_until` is when this process gives the lease up unless a renewal puts it off; `clock_ms` plus the monotonic
    milliseconds is the time of the authoritative clock, never behind it.
    """

    claimed: Claimed
    buffer: "PrefetchBuffer"
    claimed_at: float
    held_until: float
    clock_ms: float
    started_at: float = 0.0
    ended: bool = False
    """Whether its handler has ended."""
    released: bool = False
    """Whether it was given back, not started. Set before `ended` is: a lease that has ended otherwise counts as run."""
    lost: bool = False
    """Whether another move took the lease."""
    abandoned: bool = False
    """Whether its handler was stopped, or told to stop, because the lease could not be renewed in time."""
    interrupted: bool = False
    """Whether this worker itself took it, because it stops."""
    overdue: bool = False
    cancel: Callable[[], object] | None = None
    """Stops the handler because the lease is not held any more, where that can be done."""
    permit_request: PermitRequest | None = None
    """The request by which it got its permits, where its handler has limits."""

    def is_held(self) -> bool:
        """Return whether this process may still act on the message."""
        return not self.lost and not self.abandoned and monotonic() < self.held_until

    def check_held(self) -> bool:
        """Return `is_held`, when the handler asks.

        Once it is False the attempt counts as abandoned: the handler may stop half-way.
        """
        if not self.is_held():
            self.abandoned = True
        return not self.abandoned

    @property
    def runs(self) -> bool:
        """Return whether its handler runs in this process, whatever became of its lease."""
        return self.started_at > 0 and not self.ended

    def now_ms(self) -> int:
        """Return the time of the authoritative clock now."""
        return self.ms_of(monotonic())

    def ms_of(self, at: float) -> int:
        """Return the time of the authoritative clock at this monotonic time."""
        return int(self.clock_ms + at * 1000)

    @property
    def timeout_s(self) -> float:
        """Return how long the handler may run."""
        header = self.claimed.header
        of_message = header.timeout_ms if header else None
        return (self.buffer.handler.timeout_ms if of_message is None else of_message) / 1000

    def is_over_time(self) -> bool:
        """Return whether the handler has run for longer than it may."""
        return monotonic() >= self.started_at + self.timeout_s


@dataclass(slots=True, eq=False)
class PrefetchBuffer:
    """The leases of one handler that wait for a slot, and its pace. Only its executor changes `leases`."""

    handler: Handler[Any, Any]
    subscriptions: Sequence[Pair]
    """The (queue, key) pairs that it claims from."""
    concurrency: int
    leases: deque[Lease] = field(default_factory=deque)
    active: int = 0
    """How many slots work for it."""
    ended: int = 0
    """How many messages it has run."""
    mean_s: float | None = None
    """The mean of recent run times; None while unknown."""
    has_at_most_once: bool = False
    """Whether the last claim gave at-most-once messages: there may be more of them, so nothing is claimed ahead."""
    more_available: bool = False
    """Whether the last claim may have left something behind: then a slot that frees is worth another claim."""
    refill_at: int = -1
    """The number of waiting leases at which it is time to claim more."""
    last_snapshot: tuple[int, int] = (0, 0)
    """`ended` and the leases that waited, as of the last claim."""
    added_at: float = 0.0
    """When leases were added last."""
    keys: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = tuple(dict.fromkeys(key for _, key in self.subscriptions))

    def state(self, available: int) -> BufferState:
        """Return what it is like now, with `available` slots that may come to it."""
        return BufferState(
            self.handler.key,
            self.keys,
            self.concurrency,
            self.max_slots,
            available,
            self.active,
            len(self.leases),
            self.prefetch_per_slot,
            self.is_draining,
            self.is_idle_only,
            self.added_at,
        )

    @property
    def max_slots(self) -> int:
        """Return how many slots may run its messages, also by a limit on all messages of the handler."""
        limits = self.handler.limits
        most = None if limits is None else limits.most_of_all
        return self.concurrency if most is None else min(self.concurrency, most)

    @property
    def is_idle_only(self) -> bool:
        """Return whether nothing is claimed ahead, because a message whose turn came must start."""
        return self.handler.at_most_once or self.handler.limits is not None

    @property
    def is_draining(self) -> bool:
        """Return whether its slots got on after the last claim, with a handler so fast that they leave in a moment."""
        ended, waiting = self.last_snapshot
        return self.prefetch_per_slot > 1 and (self.ended != ended or len(self.leases) < waiting)

    @property
    def prefetch_per_slot(self) -> int:
        """Return how many messages one slot gets through in a time slice."""
        if self.has_at_most_once or self.mean_s is None:
            return 1
        return int(min(max(TIME_SLICE_S / max(self.mean_s, 1e-6), 1), MAX_PER_SLOT))

    def note_run(self, count: int, seconds: float) -> None:
        """Count `count` messages that took `seconds` in all."""
        self.ended += count
        mean = seconds / count
        # One slow run counts at once: what was prefetched for a fast handler would wait behind it.
        self.mean_s = mean if self.mean_s is None or mean > self.mean_s else 0.7 * self.mean_s + 0.3 * mean

    def note_claim(
        self, *, saturated: bool = False, more_available: bool = False, has_at_most_once: bool = False
    ) -> None:
        """Note the state at a claim, and whether that gave all that it asked for, or left something behind."""
        waiting = len(self.leases)
        self.last_snapshot = (self.ended, waiting)
        self.has_at_most_once = has_at_most_once
        self.refill_at = waiting // 2 if saturated and self.prefetch_per_slot > 1 else -1
        self.more_available = saturated or more_available

    def note_stall(self) -> None:
        """Stop prefetching until a slot makes progress, because something has waited too long."""
        self.last_snapshot = (self.ended, len(self.leases))
