"""Schedule what is due soon right after its commit: the cursor may be past it already.

That is one bounded call. Where there is too much for it, the cursor is set back, and the next pass schedules the rest.
What is due later needs no call. If the call fails, the sweep finds what it was for.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from time import monotonic
from typing import NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from django_delayq.brokers.base import BATCH, Alarm, Timer
from django_delayq.core.errors import PartlyUnavailable
from django_delayq.store.window import SOON_MS
from django_delayq.support.commit_hooks import last_hook
from django_delayq.support.logging import logger

WITHIN_S = 0.25
SKIP_S = 5.0
"""How long this process leaves everything to the sweep after a failure: a hung broker must not cost each commit."""


class CommitNotifier:
    """Schedules alarms after the commit of the transaction that wrote their rows. It never raises."""

    def __init__(self, timer: Timer, now_ms: Callable[[], int]) -> None:
        self._timer = timer
        self._now_ms = now_ms
        self._skip_until = 0.0
        self._quiet_until = 0.0

    def put_after_commit(self, connection: BaseDatabaseWrapper, alarms: Sequence[Alarm]) -> None:
        """Schedule the `alarms` that are due soon once the connection's transaction commits; at once outside of one.

        Django has no callback for the end of a transaction that is managed by hand: what is due in it is left to the
        sweep.
        """
        if not alarms:
            return
        if not connection.in_atomic_block:
            if connection.get_autocommit():
                self.put([alarm for alarm in alarms if alarm.wait_ms <= SOON_MS])
            return
        hook = last_hook(connection, _Hook)
        if hook is None or hook.commit_notifier is not self:
            hook = _Hook(self)
            connection.on_commit(hook.after_commit, robust=True)
        hook.add(alarms)

    def put(self, alarms: Sequence[Alarm], rest_wait_ms: int | None = None) -> None:
        """Schedule alarms, unless the last try failed a moment ago. `rest_wait_ms` is the wait of what is left out."""
        has_rest = rest_wait_ms is not None and rest_wait_ms <= SOON_MS
        if not (alarms or has_rest) or monotonic() < self._skip_until:
            return
        try:
            if rest_wait_ms is not None and has_rest:
                self._timer.set_cursor_back(self._now_ms() + rest_wait_ms - 1)
            if alarms:
                self._timer.schedule(alarms, within_s=WITHIN_S)
        except PartlyUnavailable as error:  # the rest of the broker goes on being told
            self._warn(alarms, error)
        except Exception as error:  # noqa: BLE001 - the rows are committed: the sweep finds them
            self._skip_until = monotonic() + SKIP_S
            self._warn(alarms, error)

    def _warn(self, alarms: Sequence[Alarm], error: Exception) -> None:
        """Log a warning, unless one was logged a moment ago."""
        if monotonic() >= self._quiet_until:
            self._quiet_until = monotonic() + SKIP_S
            logger.warning("The broker was not told of %d message(s); a sweep finds them. (%s)", len(alarms), error)


class _TimedAlarm(NamedTuple):
    """An alarm, and when it is due by the monotonic clock, in seconds."""

    due_at: float
    alarm: Alarm


class _Hook:
    """The earliest alarms that one transaction, or one savepoint of it, may have to schedule."""

    def __init__(self, commit_notifier: CommitNotifier) -> None:
        self.commit_notifier = commit_notifier
        self._alarms: list[_TimedAlarm] = []
        self._rest_due_at = math.inf

    def add(self, alarms: Sequence[Alarm]) -> None:
        """Take alarms of rows that the transaction wrote just now."""
        now = monotonic()
        self._alarms += [_TimedAlarm(now + alarm.wait_ms / 1000, alarm) for alarm in alarms]
        if len(self._alarms) > BATCH:
            self._alarms.sort(key=_due_at)
            self._rest_due_at = min(self._rest_due_at, self._alarms[BATCH].due_at)
            del self._alarms[BATCH:]

    def after_commit(self) -> None:
        """Schedule the alarms that are due soon, as an `on_commit` callback."""
        now = monotonic()
        waiting = [replace(each.alarm, wait_ms=_wait_ms(each.due_at, now)) for each in self._alarms]
        rest_wait_ms = None if self._rest_due_at == math.inf else _wait_ms(self._rest_due_at, now)
        self.commit_notifier.put([alarm for alarm in waiting if alarm.wait_ms <= SOON_MS], rest_wait_ms)


_due_at = attrgetter("due_at")


def _wait_ms(due_at: float, now: float) -> int:
    return max(math.ceil((due_at - now) * 1000), 0)
