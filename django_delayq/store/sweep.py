"""The sweep: rows whose alarm the clock lost without a restart, for whatever reason, get it again."""

from collections.abc import Iterable, Sequence

from django_delayq.brokers.base import BATCH, Broker, Claimed, Want
from django_delayq.store.database import Database
from django_delayq.store.feed import due

LATE_MS = 60_000


class Unfed:
    """The (queue, key) pairs whose last claim came back empty while hands were free."""

    def __init__(self) -> None:
        self._sets: set[tuple[str, str]] = set()

    def note(self, wants: Sequence[Want], messages: Iterable[Claimed]) -> None:
        """What a claim wanted, and what came."""
        self._sets.update((want.queue, want.key) for want in wants if want.count > 0)
        self._sets.difference_update((one.header.queue, one.header.key) for one in messages if one.header)

    def wants(self) -> list[Want]:
        """As much as a claim takes of each."""
        return [Want(queue, key, BATCH) for queue, key in list(self._sets)]


def sweep(database: Database, clock: Broker, wants: Sequence[Want]) -> int:
    """Put alarms for rows of the wanted sets that are due for over a minute and that nobody holds, a thousand at most.

    Gives how many.
    """
    alarms, _ = due(database, wants, late_ms=LATE_MS)
    if alarms:
        clock.put_alarms(alarms)
    return len(alarms)
