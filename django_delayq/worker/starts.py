"""Take starts of a rate for messages to come, so that many messages of one value of `rate_key` ask once.

A start that nobody uses is lost to all workers. So a worker takes none for messages to come of a value of which it has
run none lately, nor for a while after a start of that value was refused. Otherwise it takes as many as it will need
while a block lasts, if it goes on as since the last one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from django_delayq.brokers.base import PermitRequest
from django_delayq.core.limits import LEAST_WITHIN_US, Ahead, Limits
from django_delayq.worker.leases import Lease

GROWTH = 10
"""A block has at most so many starts for each that leases got of the last one."""
REMEMBERED_S = 4.0
"""The seconds for which a worker remembers that it asked for starts of a value: longer than a block lasts."""
ALONE_S = 5.0
"""The seconds after a refusal in which each message asks for its own permit or start again."""


@dataclass(slots=True, eq=False)
class StartBlock:
    """The starts of one (key, value of `rate_key`) that a worker took in one call. Times in seconds are monotonic."""

    asked_at: float = -math.inf
    start_until: float = 0.0
    """Until when each of them must be used."""
    left: int = 0
    """The number of them that no lease has got yet."""
    used: int = 0
    """The number of them that leases have got."""
    alone_until: float = 0.0
    """Until when none are taken ahead, because one was refused."""

    @property
    def remembered_until(self) -> float:
        """Return until when it tells how many starts to take ahead."""
        return max(self.asked_at + REMEMBERED_S, self.alone_until)

    def give(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Give starts to leases, as long as these still have time to use them. Return the leases that get none."""
        if monotonic() >= self.start_until - LEAST_WITHIN_US / 1_000_000:
            return leases
        return self._give(leases)

    def request(self, key: str, limits: Limits, value: str, count: int, ahead: Ahead) -> PermitRequest:
        """Return a request of `count` starts that leases need now, and of some for later ones.

        Their time begins with it, before the limiter counts it.
        """
        now = monotonic()
        more = self._more(ahead, count, now) if ahead.most and self.used else 0
        within_us = ahead.longest_within_us if more else ahead.within_us
        self.asked_at, self.start_until = now, now + within_us / 1_000_000 if within_us else math.inf
        return PermitRequest(
            key,
            "",
            0,
            interval_us=limits.interval_us,
            rate_value=value,
            burst=limits.burst,
            within_us=within_us,
            starts=count + more,
        )

    def fill(self, leases: Sequence[Lease], granted: int, *, is_refused: bool) -> Sequence[Lease]:
        """Put granted starts in the place of the earlier ones, and give them to leases. Return those that get none."""
        self.left, self.used = granted, 0
        if is_refused:
            self.alone_until = monotonic() + ALONE_S
        return self._give(leases)

    def _more(self, ahead: Ahead, count: int, now: float) -> int:
        if now < self.alone_until:
            return 0
        lasts_s = (ahead.longest_within_us - LEAST_WITHIN_US) / 1_000_000
        expected = self.used * min(lasts_s / max(now - self.asked_at, 0.001), GROWTH)
        return max(min(math.ceil(expected) - count, ahead.most), 0)

    def _give(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        given = leases[: self.left]
        for lease in given:
            lease.start_until = self.start_until
        self.left -= len(given)
        self.used += len(given)
        return leases[len(given) :]
