"""Define what is counted of the attempts of a queue and key, and read means and quantiles from the counts.

Times are counted into buckets with fixed bounds, so that the counts of minutes, workers and queues can be added up. The
counting itself is in worker/figures.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from django_delayq.core.requests import Pair

MINUTE_MS = 60_000

MOST_PAIRS = 200
"""The most pairs of queue and key that have counts of their own."""
OTHERS: Pair = ("", "")
"""The pair under which all others are counted. No real name is empty."""

BOUNDS_MS = (2, 5, 10, 25, 50, 100, 250, 1_000, 5_000, 30_000, 300_000, 3_600_000)
"""The highest time of each bucket, in ms. One more bucket has the times beyond the last bound."""

_BUCKETS = range(len(BOUNDS_MS) + 1)

COUNTS = (
    *("finished", "failed", "retried", "snoozed", "buried"),
    *("ran_ms", *(f"ran_{bucket}" for bucket in _BUCKETS)),
    *("late_ms", *(f"late_{bucket}" for bucket in _BUCKETS)),
)
"""The counts of one queue and key, in the order in which they are kept; each is a column of `delayq_figure`."""

# The positions in `COUNTS`; RAN and LATE are those of the first bucket.
FINISHED, FAILED, RETRIED, SNOOZED, BURIED, RAN_MS, RAN, *_ = range(len(COUNTS))
LATE_MS = RAN + len(_BUCKETS)
LATE = LATE_MS + 1


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The times, in ms, that half, 95 % and 99 % of all times don't exceed, estimated within their buckets."""

    p50: int
    p95: int
    p99: int


@dataclass(frozen=True, slots=True)
class Times:
    """How many times fell into each bucket, and the sum of all times in ms."""

    total_ms: int
    buckets: Sequence[int]

    @property
    def number(self) -> int:
        """Return how many times were counted."""
        return sum(self.buckets)

    @property
    def quantiles(self) -> Quantiles | None:
        """Return the quantiles; None if nothing was counted."""
        return Quantiles(*map(self._quantile, (0.5, 0.95, 0.99))) if self.number else None

    def _quantile(self, share: float) -> int:
        """Return the ms that this share of all times doesn't exceed, as if each bucket's times were spread evenly.

        Return the last bound if that time lies beyond it.
        """
        left = self.number * share
        for number, (after_ms, until_ms) in zip(self.buckets, pairwise((0, *BOUNDS_MS)), strict=False):
            if left <= number:
                return round(after_ms + (until_ms - after_ms) * left / number) if number else after_ms
            left -= number
        return BOUNDS_MS[-1]


class Figures(tuple[int, ...]):
    """The counts of a span of time, in the order of `COUNTS`."""

    __slots__ = ()

    @classmethod
    def sum(cls, all_counts: Iterable[Sequence[int]]) -> "Figures":
        """Return all counts added up."""
        return cls(map(sum, zip([0] * len(COUNTS), *all_counts, strict=True)))

    @property
    def finished(self) -> int:
        """Return how many messages finished."""
        return self[FINISHED]

    @property
    def failed(self) -> int:
        """Return how many attempts failed, or died with their process."""
        return self[FAILED]

    @property
    def retried(self) -> int:
        """Return how many attempts were followed by a retry, after a failure or a crash."""
        return self[RETRIED]

    @property
    def snoozed(self) -> int:
        """Return how many attempts ended with a snooze."""
        return self[SNOOZED]

    @property
    def buried(self) -> int:
        """Return how many messages were buried, with or without an attempt."""
        return self[BURIED]

    @property
    def run_times(self) -> Times:
        """Return how long the attempts ran."""
        return Times(self[RAN_MS], self[RAN:LATE_MS])

    @property
    def lateness(self) -> Times:
        """Return how late the attempts started."""
        return Times(self[LATE_MS], self[LATE:])

    @property
    def attempts(self) -> int:
        """Return how many attempts started and ended; an attempt that was interrupted or lapsed is not counted."""
        return self.run_times.number

    @property
    def ended(self) -> int:
        """Return how many attempts were the last ones: their messages finished, or were buried after them."""
        return self.finished + self.failed - self.retried
