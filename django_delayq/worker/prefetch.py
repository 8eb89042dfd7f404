"""The messages that wait in this process: a lease for each, a lane for each handler, and how much a lane wants."""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import Claimed, PermitRequest

RUN_S = 0.020
"""A hand leaves its lane after this long, and a lane holds about this much work for each of its hands."""
MOST_PER_HAND = 64


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
    abandon: Callable[[], object] | None = None
    """Stops the handler, where that can be done."""
    ask: PermitRequest | None = None
    """The request by which it got its permits, where its handler has limits."""

    def is_held(self) -> bool:
        """Return whether this process may still act on the message."""
        return not self.lost and not self.abandoned and monotonic() < self.held_until

    def tell_held(self) -> bool:
        """Return `is_held`, for the handler.

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
    """One handler's place in this process: the leases that wait for its hands, and its pace."""

    handler: Handler[Any, Any]
    sets: Sequence[tuple[str, str]]
    """The (queue, key) pairs that it claims from."""
    concurrency: int
    keys: dict[str, list[str]] = field(init=False)
    """Its keys in each queue."""
    leases: deque[Lease] = field(default_factory=deque)
    active: int = 0
    """How many hands are in the lane."""
    ended: int = 0
    mean_s: float | None = None
    """The mean of recent run times; None while unknown."""
    once: bool = False
    """Whether the last claim gave at-most-once messages: there may be more of them, so nothing is claimed ahead."""
    backlog: set[str] = field(default_factory=set)
    """The queues that had more for it when they were last asked."""
    unmet: bool = False
    """Whether the last claim may have left something behind: then a freed hand is worth another claim."""
    low: int = -1
    """The number of waiting leases at which it is time to claim more."""
    seen: tuple[int, int] = (0, 0)
    """`ended` and the leases that waited, as of the last claim."""

    def __post_init__(self) -> None:
        self.keys = {}
        for queue, key in self.sets:
            self.keys.setdefault(queue, []).append(key)

    def want(self, free: int, most: int) -> int:
        """Return how many messages to claim now, with `free` hands to spare for any lane, for `most` hands in all.

        Busy hands count only while the lane moves: nothing is heaped up behind a handler that stalls.
        """
        if self.handler.at_most_once or self.handler.limits is not None:  # a message whose turn came must start
            return self.at_once(min(free, most))
        hands = min(self.concurrency - self.active, free)
        waiting = self.waiting
        per_hand = self.per_hand
        if self.moves:
            hands += self.active
        hands = min(hands, most)
        wanted = hands * per_hand - waiting
        return wanted if wanted * 2 >= hands * per_hand else 0  # half a run at least: small claims cost as much

    @property
    def most_hands(self) -> int:
        """Return how many hands may run its messages at once, also by a limit on all messages of the handler."""
        limits = self.handler.limits
        most = None if limits is None else limits.most_of_all
        return self.concurrency if most is None else min(self.concurrency, most)

    @property
    def waiting(self) -> int:
        """Return how many messages wait here."""
        return len(self.leases)

    @property
    def moves(self) -> bool:
        """Return whether its hands got on after the last claim, with a handler so fast that they leave in a moment."""
        return self.per_hand > 1 and (self.ended != self.seen[0] or self.waiting < self.seen[1])

    def note_stall(self) -> None:
        """Stop claiming ahead until a hand makes progress, because something has waited too long."""
        self.seen = (self.ended, self.waiting)

    def at_once(self, free: int) -> int:
        """Return how many more messages would start at once, with `free` hands that nothing waits for."""
        return max(min(self.concurrency - self.active, free) - len(self.leases), 0)

    @property
    def per_hand(self) -> int:
        """Return how many messages one hand gets through in `RUN_S`."""
        if self.once or self.mean_s is None:
            return 1
        return int(min(max(RUN_S / max(self.mean_s, 1e-6), 1), MOST_PER_HAND))

    def share(self, hands: int) -> int:
        """Return how many leases a hand takes at a time, of `hands`, so that those to come get their part."""
        if self.handler.at_most_once or self.handler.limits is not None:  # they are for hands that are free
            return 1
        to_come = min(self.concurrency, hands) - self.active
        return min(self.per_hand, -(-len(self.leases) // max(to_come + 1, 1)))

    def note_run(self, count: int, seconds: float) -> None:
        """Count `count` messages that took `seconds` in all."""
        self.ended += count
        mean = seconds / count
        # One slow run counts at once: what was prefetched for a fast handler would wait behind it.
        self.mean_s = mean if self.mean_s is None or mean > self.mean_s else 0.7 * self.mean_s + 0.3 * mean

    def note_claim(self, *, filled: bool, left: bool, once: bool) -> None:
        """Remember where the lane stood when it was last claimed for, and what the claim gave and left behind."""
        waiting = self.waiting
        self.seen = (self.ended, waiting)
        self.once = once
        self.low = waiting // 2 if filled and self.per_hand > 1 else -1
        self.unmet = filled or left


def take_unstarted(buffer: PrefetchBuffer, claimed_before: float) -> list[Lease]:
    """Take out the leases that were claimed before `claimed_before` and that no hand has started."""
    taken = []
    while buffer.leases:
        try:
            lease = buffer.leases.popleft()
        except IndexError:  # a hand was faster
            break
        if lease.claimed_at >= claimed_before:
            buffer.leases.appendleft(lease)
            break
        taken.append(lease)
    return taken


def take_paused(buffer: PrefetchBuffer, is_paused: Callable[[str, str], bool]) -> list[Lease]:
    """Take out the leases of paused queues and keys that no hand has started."""
    taken = []
    for lease in list(buffer.leases):
        header = lease.claimed.header
        if header is not None and is_paused(header.queue, header.key):
            with contextlib.suppress(ValueError):  # a hand was faster
                buffer.leases.remove(lease)
                taken.append(lease)
    return taken
