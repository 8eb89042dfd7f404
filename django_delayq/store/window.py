"""The window: what is due within the next seconds has an alarm, and a cursor beside the alarms says up to when.

A pass reads the rows after the cursor, page by page, and sets the cursor forward in the same step as it schedules a
page. It writes no row and holds no lock: any worker may do it at any time, and two at once do no harm. What is due
before the cursor when it commits is scheduled right after the commit (commit_notifier.py). What is due already needs no
alarm: workers claim it from the table (polling.py), where a sweep finds it.

The cursor shares the fate of the alarms. If it is lost, it begins at now.
"""

from django_delayq.brokers.base import BATCH, Alarm, Timer
from django_delayq.store.database import Database
from django_delayq.store.sql.selects import Position, page_after
from django_delayq.support.logging import logger

WINDOW_MS = 10_000
"""How far ahead of now a pass sets the cursor."""
SOON_MS = WINDOW_MS + 2_000
"""What is due within this time is scheduled after its commit. A pass that did not see it may have begun as long ago as
its commit took."""
FRESH_MS = 500
"""A pass that began less than this ago is not repeated."""
LAST_PK = 2**63 - 1


def schedule_window(database: Database, timer: Timer, window_ms: int = WINDOW_MS) -> int:
    """Schedule what is due after the cursor and within the window, and set the cursor there. Return how many rows."""
    cursor_ms = timer.cursor()
    now_ms = database.now_ms()  # after the cursor was read: so no pass can have set it further ahead than the window
    to_ms = now_ms + window_ms
    if cursor_ms is None:
        cursor_ms = timer.advance_cursor([], None, now_ms)
        if timer.cursor() is not None:  # else a part of the broker takes nothing: the next pass tries again
            logger.warning("The broker is new, or has lost its alarms: those of the next seconds are scheduled.")
    elif cursor_ms > to_ms:  # the database's clock was set back
        timer.set_cursor_back(now_ms)
        cursor_ms = now_ms
    if cursor_ms is None or cursor_ms > to_ms - FRESH_MS:
        return 0
    return _schedule_from(database, timer, cursor_ms, (max(cursor_ms, now_ms), LAST_PK), window_ms, to_ms)


def _schedule_from(
    database: Database, timer: Timer, cursor_ms: int, after: Position, within_ms: int, to_ms: int
) -> int:
    """Schedule page by page. Each is read up to `within_ms` from its own time, which is never before `to_ms`."""
    columns = ("r.queue", "r.key", f"r.due_at - {database.dialect.now}")
    count = 0
    while True:
        rows = database.rows(*page_after(database, after, within_ms, columns, "delayq_ready_list"))
        count += len(rows)
        is_last = len(rows) < BATCH
        reached_ms = max(cursor_ms, to_ms if is_last else rows[-1][0] - 1)  # others may be due at the same time
        alarms = [Alarm(queue, key, str(pk), max(wait_ms, 0)) for _, pk, queue, key, wait_ms in rows]
        there_ms = timer.advance_cursor(alarms, cursor_ms, reached_ms)
        if is_last or there_ms is None or there_ms < reached_ms:  # lost, or set back: the next pass goes on from there
            return count
        cursor_ms = there_ms  # another pass may be further
        after = max(rows[-1][:2], (there_ms, LAST_PK)) if there_ms > reached_ms else rows[-1][:2]
