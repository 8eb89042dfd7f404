"""Keep what claims leave behind in queues that have an order. Pure: values in, values out; no clock, no lock, no I/O.

With a hundred queues and a hundred handlers, each claim would otherwise ask for 10,000 pairs.
"""

from collections.abc import Collection

from django_delayq.core.requests import Pair

SEEN_FOR_S = 0.020
"""How long a look serves: what comes due meanwhile in an earlier queue waits so much longer than it must."""


class Backlog:
    """The pairs in which something is due, as a look at the broker saw it, without those that claims have emptied.

    One look serves the next claims for a moment, until each of its pairs was asked for. Then another look tells what is
    now due in earlier queues. After a claim that found nothing it serves until it is used up, and a claim of everything
    follows.
    """

    def __init__(self) -> None:
        self.pairs: set[Pair] = set()
        """The pairs in which something is known to be due."""
        self._unasked: set[Pair] = set()  # of these, what no claim has asked for
        self._seen_at = 0.0
        self._may_have_more = True

    @property
    def needs_look(self) -> bool:
        """Return whether something may be left behind, and it is not known where."""
        return self._may_have_more and not self.pairs

    def see(self, due: Collection[Pair], now: float) -> None:
        """Note what a look saw to be due."""
        self.pairs = set(due)
        self._unasked = self.pairs.copy()
        self._seen_at = now

    def forget(self) -> None:
        """Forget what was seen, because it is too old by the time of the next claim."""
        self.pairs.clear()

    def note_claim(self, asked: Collection[Pair], emptied: Collection[Pair], *, found: bool, now: float) -> None:
        """Note a claim of some pairs that are known to be due: which it asked for, and which have nothing more."""
        self._unasked.difference_update(asked)
        self.pairs.difference_update(emptied)
        self._may_have_more = bool(self.pairs)
        if found and (not self._unasked or now >= self._seen_at + SEEN_FOR_S):
            self.forget()

    def note_claim_of_all(self, *, more_available: bool) -> None:
        """Note a claim of all that there are slots for, and whether it left anything behind."""
        self._may_have_more = more_available or bool(self.pairs)
        self.forget()
