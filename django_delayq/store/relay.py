"""The relay: puts alarms for rows that will be due within the horizon, nearest first. The broker holds no others.

Any number of relays run beside each other, without a leader: putting is idempotent, and a row is marked as placed only
while its due time is the one that was read. No lock is held across a call of the broker.
"""

from django_delayq.brokers.base import BATCH, Alarm, Timer
from django_delayq.store.database import Database, Row, Sql
from django_delayq.store.sql.page import START, Position, page_after
from django_delayq.store.sql.rows import checked
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
    """Put again every alarm that the clock has lost. Returns how many rows it read.

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
