"""The free hands of a claim that is made in several calls."""

from collections import Counter
from collections.abc import Sequence

from django_delayq.brokers.base import ClaimRequest
from django_delayq.brokers.redis.claim import MOST
from django_delayq.brokers.redis.keys import set_name


class Demand:
    """The remaining demand of each wait set, and `left`, how many may be given in all.

    That is as many as one call gives, because a set that gives less than it was asked for thereby shows that it has no
    more. A set may be wanted twice.
    """

    def __init__(self, wants: Sequence[ClaimRequest]) -> None:
        counts: dict[str, int] = {}  # Counter adds slowly, and many queues of many handlers are 10,000 sets
        at_once: dict[str, int] = {}
        self._sets: dict[str, tuple[str, str]] = {}
        for want in wants:
            if want.count > 0:
                name = set_name(want.queue, want.key)
                self._sets[name] = want.queue, want.key
                counts[name] = counts.get(name, 0) + want.count
                at_once[name] = at_once.get(name, 0) + max(want.at_once, 0)
        self._counts, self._at_once = Counter(counts), Counter(at_once)
        self.names = frozenset(self._sets)
        self._ranks = {name: rank for rank, name in enumerate(self._sets)}
        self.left = min(MOST, self._counts.total())

    def free(self, name: str) -> int:
        """Return how many are wanted of a set."""
        return self._counts[name]

    def rank(self, name: str) -> int:
        """Return the rank of a set among those wanted: where a call can't give all, the first come first."""
        return self._ranks[name]

    def wants(self) -> list[ClaimRequest]:
        """Return all that is wanted, each set once."""
        return [self.share(name, 0, 1) for name in self._sets]

    def share(self, name: str, nth: int, of: int) -> ClaimRequest:
        """Return the `nth` of `of` even shares of what is wanted of a set."""
        return ClaimRequest(*self._sets[name], _part(self._counts[name], nth, of), _part(self._at_once[name], nth, of))

    def fill(self, name: str, count: int) -> None:
        """Note that a set gave `count`."""
        self.left -= count
        self._counts[name] -= count
        self._at_once[name] = max(self._at_once[name] - count, 0)


def _part(number: int, nth: int, of: int) -> int:
    return number // of + (nth < number % of)
