"""The sweep: rows whose alarm the timer lost without a restart, for whatever reason, get it again."""

from collections import Counter
from collections.abc import Iterable, Sequence

from django_delayq.brokers.base import BATCH, Alarm, AlarmIndex, AlarmInfo, Claimed, ClaimRequest, Timer
from django_delayq.store.database import Database
from django_delayq.store.polling import due

LATE_MS = 5_000


class Underfilled:
    """The (queue, key) pairs whose last claim gave fewer messages than it wanted."""

    def __init__(self) -> None:
        self._sets: set[tuple[str, str]] = set()

    def note(
        self, wants: Sequence[ClaimRequest], alarms: Iterable[Alarm], messages: Iterable[Claimed], *, left: bool
    ) -> None:
        """Record which pairs got fewer messages than were wanted.

        If the timer has more that is due (`left`), a pair that gave any alarm does not count: the rest may be behind
        stale alarms.
        """
        heard = Counter((alarm.queue, alarm.key) for alarm in alarms)
        given = Counter((one.header.queue, one.header.key) for one in messages if one.header)
        short = (
            want
            for want in wants
            if (heard[want.queue, want.key] < min(want.count, 1) if left else given[want.queue, want.key] < want.count)
        )
        self._sets = {(want.queue, want.key) for want in short}

    def wants(self) -> list[ClaimRequest]:
        """Return a want for each pair, of as much as a claim takes."""
        return [ClaimRequest(queue, key, BATCH) for queue, key in self._sets]


def sweep(database: Database, timer: Timer, index: AlarmIndex | None, wants: Sequence[ClaimRequest]) -> int:
    """Put alarms for rows of the wanted pairs that nobody holds and that are due for over 5 s, at most a thousand.

    A timer that can be asked is asked first: then only alarms that it has lost, or would ring far too late, are put.
    Returns how many.
    """
    alarms, _ = due(database, wants, late_ms=LATE_MS)
    if index is not None:
        alarms = unheard(index, alarms)
    if alarms:
        timer.schedule(alarms)
    return len(alarms)


def unheard(index: AlarmIndex, alarms: Sequence[Alarm]) -> list[Alarm]:
    """Return the alarms that the timer lacks, or that wait there for over 5 s longer because its time jumped back.

    An alarm that is claimed waits no longer than its lease, which the timer's maintenance cuts after such a jump.
    """
    heard: set[tuple[str, str, str]] = set()
    for queue, key in dict.fromkeys((alarm.queue, alarm.key) for alarm in alarms):
        waits = {alarm.pk: alarm.wait_ms for alarm in alarms if (alarm.queue, alarm.key) == (queue, key)}
        found = index.find_alarms(queue, key, list(waits))
        heard.update((queue, key, each.pk) for each in found if _rings_within(each, waits[each.pk] + LATE_MS))
    return [alarm for alarm in alarms if (alarm.queue, alarm.key, alarm.pk) not in heard]


def _rings_within(alarm: AlarmInfo, ms: int) -> bool:
    if alarm.due_ms is None or alarm.now_ms is None or alarm.lease_end_ms is not None:
        return True
    return alarm.due_ms <= alarm.now_ms + ms
