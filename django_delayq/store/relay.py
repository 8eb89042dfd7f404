"""How rows get their alarms from a worker: the relay, the rebuild, and the sweep.

The relay puts alarms for rows that will be due within the horizon, nearest first; the timer holds no others. A rebuild
puts them all again for a timer that lost them, and the sweep those of single rows, for whatever reason they were lost.

Any number of relays run beside each other, without a leader: putting is idempotent, and a row is marked as placed only
while its due time is the one that was read. No lock is held across a call of the broker.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from django_delayq.brokers.base import BATCH, Alarm, AlarmIndex, AlarmInfo, Claimed, ClaimRequest, Timer
from django_delayq.store.database import Database, Row, Sql
from django_delayq.store.polling import due
from django_delayq.store.sql.rows import checked
from django_delayq.store.sql.selects import START, Position, page_after
from django_delayq.store.sql.statements import statements

REBUILD_LOCK_MS = 10_000
"""How long the lock of a rebuild lasts after its last page: if its holder dies, another can begin then."""
SHORT_CUT_MS = 1_000
"""Messages due within this time are left to the short cut of their send; the next pass takes those it missed."""


def relay(database: Database, timer: Timer, horizon_ms: int) -> int:
    """Place one page. Returns how many rows it read; a full page (`BATCH`) asks for another pass at once.

    Rows that another transaction holds are passed over: they can't be marked, and would be read again and again, ahead
    of those behind them.
    """
    dialect = database.dialect
    rows = database.rows(
        f"SELECT r.id, r.queue, r.key, r.due_at, {dialect.now} FROM delayq_ready r"
        f" WHERE {dialect.of_alias} AND {dialect.unplaced} AND r.due_at <= {dialect.now} + %s"
        f" AND NOT r.due_at BETWEEN {dialect.now} - %s AND {dialect.now} + %s"
        f" {dialect.by_due_time} {dialect.limit.format(count=BATCH)}{dialect.skip_locked}",
        [database.alias, horizon_ms, SHORT_CUT_MS, SHORT_CUT_MS],
    )
    if rows:
        timer.schedule([Alarm(queue, key, str(pk), max(due - now, 0)) for pk, queue, key, due, now in rows])
        _mark_placed(database, [(pk, due) for pk, _, _, due, _ in rows])
    return len(rows)


def _mark_placed(database: Database, placed: list[tuple[int, int]]) -> None:
    seen = database.given("seen", {"pk": int, "due_ms": int}, placed)
    on = Sql(f"r.id = seen.pk AND {checked('r.due_at = seen.due_ms')}")
    found = database.joined(seen, on, database.dialect.skip_locked)
    statements(database).change(database, Sql("placed = %s", [True]), found, "id")


def rebuild(database: Database, timer: Timer, horizon_ms: int, lock_ms: int = REBUILD_LOCK_MS) -> int | None:
    """Put again every alarm that the timer has lost. Returns how many rows it read.

    None where it is not done: another does it, or the lock or the alarms were lost meanwhile. Nearest first; a row that
    moves nearer meanwhile gets the alarm of its move. It includes rows that are not marked as placed: their alarm may
    have been put before the loss, and be marked after it.
    """
    if not timer.begin_rebuild(lock_ms):
        return None
    count, after = 0, START
    while page := _near_after(database, horizon_ms, after):
        timer.schedule([Alarm(queue, key, str(pk), max(wait, 0)) for _, pk, queue, key, wait in page])
        count, after = count + len(page), page[-1][:2]
        if not timer.begin_rebuild(lock_ms):
            return None
    return count if timer.end_rebuild() else None


def _near_after(database: Database, horizon_ms: int, after: Position) -> list[Row]:
    """Return the page of rows after the position `after`. Each begins with its due time and pk."""
    dialect = database.dialect
    wait = f"{dialect.greatest}(r.due_at, coalesce(r.lease_until, 0)) - {dialect.now}"
    columns = ("r.queue", "r.key", wait)
    return database.rows(*page_after(database, after, horizon_ms, columns, "delayq_ready_list"))


LATE_MS = 5_000


class Underfilled:
    """The (queue, key) pairs whose last claim gave fewer messages than it wanted."""

    def __init__(self) -> None:
        self._sets: set[tuple[str, str]] = set()

    def note(
        self, requests: Sequence[ClaimRequest], alarms: Iterable[Alarm], messages: Iterable[Claimed], *, left: bool
    ) -> None:
        """Record which pairs got fewer messages than were wanted.

        If the timer has more that is due (`left`), a pair that gave any alarm does not count: the rest may be behind
        stale alarms.
        """
        heard = Counter((alarm.queue, alarm.key) for alarm in alarms)
        given = Counter((one.header.queue, one.header.key) for one in messages if one.header)
        short = (
            request
            for request in requests
            if (
                heard[request.queue, request.key] < min(request.count, 1)
                if left
                else given[request.queue, request.key] < request.count
            )
        )
        self._sets = {(request.queue, request.key) for request in short}

    def requests(self) -> list[ClaimRequest]:
        """Return a request for each pair, of as much as a claim takes."""
        return [ClaimRequest(queue, key, BATCH) for queue, key in self._sets]


def sweep(database: Database, timer: Timer, index: AlarmIndex | None, requests: Sequence[ClaimRequest]) -> int:
    """Put alarms for rows of the wanted pairs that nobody holds and that are due for over 5 s, at most a thousand.

    A timer that can be asked is asked first: then only alarms that it has lost, or would ring far too late, are put.
    Returns how many.
    """
    alarms, _ = due(database, requests, late_ms=LATE_MS)
    if index is not None:
        alarms = missing_alarms(index, alarms)
    if alarms:
        timer.schedule(alarms)
    return len(alarms)


def missing_alarms(index: AlarmIndex, alarms: Sequence[Alarm]) -> list[Alarm]:
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
