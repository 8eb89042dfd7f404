"""What feeds the claim while the clock is away: the rows that are due, by the index of each wanted (queue, key)."""

import threading
from collections import Counter
from collections.abc import Sequence
from time import monotonic, sleep

from django_delayq.brokers.base import BATCH, Alarm, BuriedInfo, Claims, Want, pages
from django_delayq.store import claims
from django_delayq.store.database import Database
from django_delayq.store.rows import CRASHES_NOW, UNHELD

EVERY_S = 1.0
LOCKED_S, LOCKED_LOOK_S = 1.0, 0.020
SETS = 50
"""The most sets that one statement looks at."""


class Feed:
    """Claims from the tables alone: once a second, and at once after a full batch."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._due_at = 0.0
        self._woken = threading.Event()

    def claim(self, wants: Sequence[Want], lease_ms: int, worker: str) -> Claims:
        """As the broker's."""
        if monotonic() < self._due_at:
            return Claims([], [], 0, None)
        found, full = claim_due(self._database, wants, lease_ms, worker)
        # Where others took, or hold, all that was found, more of the same is in the way.
        self._due_at = 0.0 if full and found.messages else monotonic() + EVERY_S
        return found

    def wait(self, timeout: float) -> bool:
        """Sleep until the next look, `wake`, or `timeout` seconds. Before that look a claim costs nothing."""
        self._woken.wait(min(timeout, max(self._due_at - monotonic(), 0)))
        self._woken.clear()
        return True

    def wake(self) -> None:
        """End the running or the next sleep."""
        self._woken.set()


def claim_due(database: Database, wants: Sequence[Want], lease_ms: int, worker: str) -> tuple[Claims, bool]:
    """Lease what is due, and whether there may be more of a wanted set."""
    alarms, full = due(database, wants)
    rows = claims.claim(database, alarms, wants, lease_ms, worker, from_alarms=False)
    return Claims(rows.messages, [], rows.now_ms, None, buried=rows.buried), full


def claim_until_none(database: Database, wants: Sequence[Want], lease_ms: int, worker: str) -> Claims:
    """Lease what is due, for one who stops when there is none: what others hold is waited for, a second at most."""
    give_up_at = monotonic() + LOCKED_S
    buried: list[BuriedInfo] = []
    while True:
        found, _ = claim_due(database, wants, lease_ms, worker)
        buried += found.buried
        found.buried = buried
        if found.messages or monotonic() > give_up_at or not due(database, wants, lock="")[0]:
            return found
        sleep(LOCKED_LOOK_S)


def due(
    database: Database, wants: Sequence[Want], late_ms: int = 0, lock: str | None = None
) -> tuple[list[Alarm], bool]:
    """Alarms for what a claim of rows would lease, at most `BATCH`, and whether there may be more of a wanted set.

    Of what has been due for `late_ms` at least. With no other `lock`, rows that another claim is at are skipped, else
    all workers would look at the same.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for want in wants:
        counts[want.queue, want.key] += want.count
    sets = [(queue, key, count) for (queue, key), count in counts.items() if count > 0]
    found = [alarm for page in pages(sets, SETS) for alarm in _due_of(database, page, late_ms, lock)]
    given = Counter((alarm.queue, alarm.key) for alarm in found)
    full = len(found) > BATCH or any(given[queue, key] >= count for queue, key, count in sets)
    return found[:BATCH], full


def _due_of(database: Database, sets: Sequence[tuple[str, str, int]], late_ms: int, lock: str | None) -> list[Alarm]:
    if not sets:
        return []
    dialect = database.dialect
    of_set = (
        "SELECT * FROM (SELECT r.id, r.queue, r.key FROM delayq_ready r WHERE r.alias = %s AND r.queue = %s"
        f" AND r.key = %s AND r.due_at <= {dialect.now} - %s AND {UNHELD.format(now=dialect.now)}"
        f" AND {CRASHES_NOW.format(least=dialect.least)} < 2"
        f" ORDER BY r.due_at LIMIT %s{dialect.skip_locked if lock is None else lock}) AS due{{i}}"
    )
    rows = database.rows(
        " UNION ALL ".join(of_set.format(i=i) for i in range(len(sets))),
        [value for queue, key, count in sets for value in (database.alias, queue, key, late_ms, min(count, BATCH))],
    )
    return [Alarm(queue, key, str(pk)) for pk, queue, key in rows]
