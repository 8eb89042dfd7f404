"""The sweep: find the (queue, key) pairs that have overdue rows, though workers have slots free for them.

Whatever became of their alarms, they are claimed from the table then. See polling.py.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from time import monotonic

from django_delayq.brokers.base import Alarm, Claimed, ClaimRequest, Pair
from django_delayq.store.database import Database
from django_delayq.store.polling import LOW_END_S, REST, due

LATE_MS = 500
RECENT_MS = 15_000
"""How far back a sweep looks that does not begin at the low end of the index."""


class Underfilled:
    """The (queue, key) pairs whose last claim gave fewer messages than it wanted."""

    def __init__(self) -> None:
        self._pairs: set[Pair] = set()

    def note(
        self, requests: Sequence[ClaimRequest], alarms: Iterable[Alarm], messages: Iterable[Claimed], *, left: bool
    ) -> None:
        """Record which pairs got fewer messages than were wanted.

        If the timer has more that is due (`left`), a pair that gave any alarm does not count: the rest may be behind
        stale alarms.
        """
        heard = Counter((alarm.queue, alarm.key) for alarm in alarms)
        given = Counter((one.header.queue, one.header.key) for one in messages if one.header)
        self._pairs = {
            (request.queue, request.key)
            for request in requests
            if (
                heard[request.queue, request.key] < min(request.count, 1)
                if left
                else given[request.queue, request.key] < request.count
            )
        }

    def requests(self) -> list[ClaimRequest]:
        """Return a request for one message of each pair."""
        return [ClaimRequest(queue, key, 1) for queue, key in self._pairs]


class Sweep:
    """Looks for overdue rows: at those that fell due lately, and at all from the low end of the index once a second.

    While another session keeps what has ended in the index, a look from the low end takes long, and rests longer.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._low_end_at = 0.0

    def find(self, requests: Sequence[ClaimRequest]) -> set[Pair]:
        """Return the pairs that have a row which nobody holds and which has been due for a while."""
        if not requests:
            return set()
        began_at = monotonic()
        is_from_low_end = began_at >= self._low_end_at
        pairs = {(request.queue, request.key) for request in requests}
        since = {} if is_from_low_end else dict.fromkeys(pairs, self._database.now_ms() - RECENT_MS)
        found, _ = due(self._database, requests, late_ms=LATE_MS, lock="", since=since)
        if is_from_low_end:
            ended_at = monotonic()
            self._low_end_at = ended_at + max(LOW_END_S - (ended_at - began_at), REST * (ended_at - began_at))
        return {(alarm.queue, alarm.key) for alarm in found}
