"""Schedule the alarms of the rows, and note whether their timer can be used.

*The window*: rows due within the next seconds have an alarm, and a cursor beside the alarms says up to when. A pass
reads the rows after the cursor, page by page, and moves the cursor forward in the same step as it schedules a page. It
writes no row and holds no lock: any worker may do it at any time, and two at once do no harm. A row that is due before
the cursor when it commits gets its alarm right after the commit (enqueue.py). A row that is due already needs no alarm:
workers claim it from the table, where a sweep finds it (polling.py).

The cursor shares the fate of the alarms. If it is lost, it begins at now.

*Degraded mode*: workers go on from the tables alone, because the timer has been away for so long, or bears the mark of
another store (mark.py).
"""

import logging
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from django_delayq.brokers.base import BATCH, Alarm, Window
from django_delayq.core.errors import PartlyUnavailable, StoreUnavailable
from django_delayq.store.database import Database
from django_delayq.store.queries import Position, page_after
from django_delayq.support.logging import logger
from django_delayq.support.units import to_text

T = TypeVar("T")

WINDOW_MS = 10_000
"""How far ahead of now a pass sets the cursor."""
SOON_MS = WINDOW_MS + 2_000
"""Rows due within this time get their alarm right after the commit.

It is longer than the window because the time counts from the INSERT: a pass between that and the commit moves the
cursor, and does not see the row.
"""
FRESH_MS = 500
"""Nothing is scheduled if the last pass over the window was less than this ago."""
LAST_PK = 2**63 - 1


def schedule_window(database: Database, window: Window, window_ms: int = WINDOW_MS) -> int:
    """Schedule alarms for rows due after the cursor and within the window, and move the cursor. Return how many."""
    cursor_ms = window.cursor()
    now_ms = database.now_ms()  # after the cursor was read: so no pass can have set it further ahead than the window
    to_ms = now_ms + window_ms
    if cursor_ms is None:
        cursor_ms = window.advance_cursor([], None, now_ms)
        if window.cursor() is not None:  # otherwise a part of the broker is away, and the next pass tries again
            has_run = database.rows("SELECT 1 FROM delayq_figure WHERE alias = %s LIMIT 1", [database.alias])
            logger.log(
                logging.WARNING if has_run else logging.INFO,  # where nothing has run yet, it is new
                "The broker is new, or has lost its alarms: those of the next seconds are scheduled.",
            )
    elif cursor_ms > to_ms:  # the database's clock was set back
        window.set_cursor_back(now_ms)
        cursor_ms = now_ms
    if cursor_ms is None or cursor_ms > to_ms - FRESH_MS:
        return 0
    return _schedule_from(database, window, cursor_ms, (max(cursor_ms, now_ms), LAST_PK), window_ms, to_ms)


def _schedule_from(
    database: Database, window: Window, cursor_ms: int, after: Position, within_ms: int, to_ms: int
) -> int:
    """Schedule alarms page by page and return how many.

    Each page covers the rows due within `within_ms` of its own time. After the last page the cursor is at `to_ms` or
    later, unless it was lost or set back meanwhile.
    """
    columns = ("r.queue", "r.key", f"r.due_at - {database.dialect.now}")
    count = 0
    while True:
        rows = database.rows(*page_after(database, after, within_ms, columns, "delayq_ready_list"))
        count += len(rows)
        is_last = len(rows) < BATCH
        # The next page may have more that are due at the same time
        reached_ms = max(cursor_ms, to_ms if is_last else rows[-1][0] - 1)
        alarms = [Alarm(queue, key, str(pk), max(wait_ms, 0)) for _, pk, queue, key, wait_ms in rows]
        there_ms = window.advance_cursor(alarms, cursor_ms, reached_ms)
        # The cursor was lost or set back: the next pass goes on from there
        if is_last or there_ms is None or there_ms < reached_ms:
            return count
        cursor_ms = there_ms  # another pass may be further
        after = max(rows[-1][:2], (there_ms, LAST_PK)) if there_ms > reached_ms else rows[-1][:2]


class Degraded:
    """The degraded mode: whether the timer answers, and whether workers go on from the tables alone.

    Before the mode is `on`, any answer of the timer ends its absence; only a window that can't be scheduled is absent
    whatever is answered. Once it is on, only `end` ends it, after a pass over the window. If only a part of the timer
    is away, the other parts are still asked. A timer that bears another store's mark is `foreign`: only the mark is
    read there.
    """

    def __init__(self, after_ms: float) -> None:
        self._after_ms = after_ms
        self.silent_since: float | None = None
        """When the timer was first asked in vain; None if its last call was answered, at least by a part of it."""
        self._partly_since: float | None = None
        self.unscheduled_since: float | None = None
        """When the window could first not be scheduled, whatever else was answered; None if the last try worked."""
        self.foreign = False
        self.on = False

    @property
    def away(self) -> bool:
        """Return whether the last call of the timer failed, a part of it is away, or degraded mode is still on."""
        return self.on or self._since is not None

    @property
    def is_alone(self) -> bool:
        """Return whether only the tables may be asked: the mode is on, and no part of the timer answers or is ours."""
        return self.on and not self.may_ask

    @property
    def may_ask(self) -> bool:
        """Return whether the timer may be asked: it answered the last call, at least in part, and is ours."""
        return self.silent_since is None and not self.foreign

    @property
    def _since(self) -> float | None:
        all_since = self.silent_since, self._partly_since, self.unscheduled_since
        return min((since for since in all_since if since is not None), default=None)

    def ask(self, call: Callable[[], T]) -> T:
        """Call the timer, and note whether it answers."""
        began_at = monotonic()
        try:
            answer = call()
        except PartlyUnavailable as error:
            self.silent_since = None
            self.hear(str(error))
            raise
        except StoreUnavailable:  # the call needed the tables too
            raise
        except Exception:
            if self.silent_since is None:
                self.silent_since = began_at
            raise
        self.silent_since = None
        return answer

    def miss_window(self) -> None:
        """Note that the window can't be scheduled, though the timer may still give the alarms that it has."""
        if self.unscheduled_since is None:
            self.unscheduled_since = monotonic()

    def hear(self, away: str) -> None:
        """Note that a part of the timer is away, though the timer answered. `away` says why; '' if all of it answers.

        Only maintenance can tell that all of it answers.
        """
        if not away:
            self._partly_since = None
        elif self._partly_since is None:
            self._partly_since = monotonic()

    def begin_if_due(self) -> None:
        """Go on from the tables alone if the timer, or a part of it, has been away for long enough."""
        since = self._since
        if self.on or since is None or monotonic() - since < self._after_ms / 1000:
            return
        self.on = True
        away, tables = (
            ("away", "the tables alone") if self.silent_since is not None else ("away in part", "the tables too")
        )
        logger.warning(
            "Degraded: the broker has been %s for over %s. Going on from %s, up to a second later.",
            away,
            to_text(self._after_ms),
            tables,
        )

    def begin_foreign(self) -> None:
        """Go on from the tables alone, because the timer bears another store's mark."""
        if not self.foreign:
            self.foreign = self.on = True
            logger.warning(
                "Degraded: the broker is marked as another site's. Going on from the tables alone, up to a second "
                "later."
            )

    def end(self) -> None:
        """End degraded mode: the timer answers, is ours, and has every alarm."""
        self.on = self.foreign = False
        self.silent_since = self._partly_since = self.unscheduled_since = None
        logger.warning("No longer degraded: the broker answers and has its alarms.")
