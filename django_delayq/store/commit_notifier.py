"""Schedule the alarms of messages that are due soon right after their commit, if the timer answers in time."""

import math
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from django_delayq.brokers.base import BATCH, Alarm, Timer
from django_delayq.core.errors import PartlyUnavailable
from django_delayq.support.commit_hooks import last_hook
from django_delayq.support.logging import logger

SOON_MS = 2_000
LONG_MS = 60_000
"""When a transaction stays open for longer than this, the relay takes what came near meanwhile."""
WITHIN_S = 0.25
SKIP_S = 5.0
"""How long this process leaves everything to the relay after a failure: a hung broker must not cost each commit."""


class CommitNotifier:
    """Puts alarms after the commit of the transaction that wrote their rows. It never raises."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._skip_until = 0.0
        self._quiet_until = 0.0

    def put_after_commit(self, connection: BaseDatabaseWrapper, alarms: Sequence[Alarm]) -> None:
        """Put the `alarms` that are due soon once the connection's transaction commits; at once outside of one.

        Django has no callback for the end of a transaction that is managed by hand: its alarms are left to the relay.
        """
        if not connection.in_atomic_block:
            if connection.get_autocommit():
                self.put(_soon(alarms))
            return
        near = [_NearAlarm(alarm, monotonic()) for alarm in alarms if alarm.wait_ms <= LONG_MS][:BATCH]
        if not near:
            return
        hook = last_hook(connection, _Hook)
        if hook is not None and hook.commit_notifier is self and len(hook.near) + len(near) <= BATCH:
            hook.near += near
            return
        connection.on_commit(_Hook(self, near).after_commit, robust=True)

    def put(self, alarms: Sequence[Alarm]) -> None:
        """Put alarms, unless the last try failed a moment ago."""
        if not alarms or monotonic() < self._skip_until:
            return
        try:
            self._timer.schedule(alarms, within_s=WITHIN_S)
        except PartlyUnavailable as error:  # the rest of the broker goes on being told
            self._warn(alarms, error)
        except Exception as error:  # noqa: BLE001 - the rows are committed: the relay takes them
            self._skip_until = monotonic() + SKIP_S
            self._warn(alarms, error)

    def _warn(self, alarms: Sequence[Alarm], error: Exception) -> None:
        """Log a warning, unless one was logged a moment ago."""
        if monotonic() >= self._quiet_until:
            self._quiet_until = monotonic() + SKIP_S
            logger.warning("The broker was not told of %d message(s); the relay will. (%s)", len(alarms), error)


class _NearAlarm(NamedTuple):
    """An alarm, and when its wait began, by the monotonic clock."""

    alarm: Alarm
    since: float


class _Hook:
    """The alarms that one transaction, or one savepoint of it, may have to put."""

    def __init__(self, commit_notifier: CommitNotifier, near: list[_NearAlarm]) -> None:
        self.commit_notifier = commit_notifier
        self.near = near

    def after_commit(self) -> None:
        """Put the alarms that are due soon, as an `on_commit` callback."""
        now = monotonic()
        self.commit_notifier.put(_soon([_waited(alarm, now - since) for alarm, since in self.near]))


def _waited(alarm: Alarm, seconds: float) -> Alarm:
    return replace(alarm, wait_ms=max(math.ceil(alarm.wait_ms - seconds * 1000), 0))


def _soon(alarms: Sequence[Alarm]) -> list[Alarm]:
    return [alarm for alarm in alarms if alarm.wait_ms <= SOON_MS][:BATCH]
