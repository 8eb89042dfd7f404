"""Count the attempts of a queue and key, and read means and quantiles from the counts. Pure: no Django, no I/O.

Times are counted into buckets with fixed bounds, so that the counts of minutes, workers and queues can be added up.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from django_delayq.core.requests import Pair
from django_delayq.core.transitions import SettleAction, Transition

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

_FINISHED, _FAILED, _RETRIED, _SNOOZED, _BURIED, _RAN_MS, *_ = range(len(COUNTS))
_RAN = _RAN_MS + 1
_LATE_MS = _RAN + len(_BUCKETS)
_LATE = _LATE_MS + 1

_FINISH = SettleAction.FINISH
_FAILURES = {SettleAction.RETRY: _RETRIED, SettleAction.CRASH: _RETRIED, SettleAction.BURY: _BURIED}
_ENDS = {_FINISH: _FINISHED, SettleAction.SNOOZE: _SNOOZED, **_FAILURES}
"""The position in `COUNTS` of the count that each action increases.

A release or an interrupt ends no attempt, and a lapse has no worker to count it.
"""


def is_counted(transition: Transition) -> bool:
    """Return whether `count` takes a transition: it ends an attempt or buries the message, and its key is known."""
    return (transition.action is _FINISH or transition.action in _ENDS) and transition.key != ""


def count(counts: list[int], transition: Transition, due_ms: int) -> None:
    """Add the transition of a message that was due at `due_ms`. If no attempt started, add at most that it ended."""
    action, started_ms, ended_ms = transition.action, transition.started_ms, transition.ended_ms
    if action is _FINISH:  # most actions are, and looking one up in a dict takes longer than all the rest
        counts[_FINISHED] += 1
    elif started_ms is not None:
        counts[_ENDS[action]] += 1
        counts[_FAILED] += action in _FAILURES
    elif action is SettleAction.BURY:
        counts[_BURIED] += 1
    if started_ms is None or ended_ms is None:
        return
    ran_ms = ended_ms - started_ms
    if ran_ms > 0:
        counts[_RAN_MS] += ran_ms
    counts[_RAN + bisect_left(BOUNDS_MS, ran_ms)] += 1
    late_ms = started_ms - due_ms
    if late_ms > 0:
        counts[_LATE_MS] += late_ms
    counts[_LATE + bisect_left(BOUNDS_MS, late_ms)] += 1


def count_buried(counts: list[int]) -> None:
    """Add a message that was buried by a worker that did not run it."""
    counts[_BURIED] += 1


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
        return self[_FINISHED]

    @property
    def failed(self) -> int:
        """Return how many attempts failed, or died with their process."""
        return self[_FAILED]

    @property
    def retried(self) -> int:
        """Return how many attempts were followed by a retry, after a failure or a crash."""
        return self[_RETRIED]

    @property
    def snoozed(self) -> int:
        """Return how many attempts ended with a snooze."""
        return self[_SNOOZED]

    @property
    def buried(self) -> int:
        """Return how many messages were buried, with or without an attempt."""
        return self[_BURIED]

    @property
    def run_times(self) -> Times:
        """Return how long the attempts ran."""
        return Times(self[_RAN_MS], self[_RAN:_LATE_MS])

    @property
    def lateness(self) -> Times:
        """Return how late the attempts started."""
        return Times(self[_LATE_MS], self[_LATE:])

    @property
    def attempts(self) -> int:
        """Return how many attempts started and ended; an attempt that was interrupted or lapsed is not counted."""
        return self.run_times.number

    @property
    def ended(self) -> int:
        """Return how many attempts were the last ones: their messages finished, or were buried after them."""
        return self.finished + self.failed - self.retried
