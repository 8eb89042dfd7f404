"""The workers and the pauses of an alias with a store.

The tables keep the pauses, which outlive a loss of the broker's data. The broker has the heartbeats, and notifies the
workers.
"""

import contextlib
from time import monotonic

from django_delayq.brokers.base import Broker, Pause, WorkerInfo
from django_delayq.conf import Alias
from django_delayq.core.errors import DelayqError
from django_delayq.store import identity, pauses
from django_delayq.store.database import Database
from django_delayq.store.degraded import Degraded


class DatabasePresence:
    """See `Presence` in brokers/base.py."""

    def __init__(self, alias: Alias, database: Database, broker: Broker, degraded: Degraded) -> None:
        self._alias = alias
        self._database = database
        self._heartbeats = broker.presence
        self._timer = broker.timer
        self._degraded = degraded

    def heartbeat(self, worker: WorkerInfo) -> list[Pause]:
        if not self._degraded.is_alone:
            identity.own(self._database, self._alias, self._timer)
            self._heartbeats.heartbeat(worker)
        return self.pauses()

    def leave(self, worker: str) -> None:
        self._heartbeats.leave(worker)

    def workers(self) -> list[WorkerInfo]:
        return self._heartbeats.workers()

    def pause(self, pause: Pause) -> None:
        with self._database.available():
            pauses.pause(self._database, pause)
        self._announce_after_commit()

    def resume(self, queue: str | None, key: str | None) -> bool:
        with self._database.available():
            resumed = pauses.resume(self._database, queue, key)
        self._announce_after_commit()
        return resumed

    def pauses(self) -> list[Pause]:
        with self._database.available():
            return pauses.pauses(self._database)

    @property
    def pause_version(self) -> int:
        # Nobody announces while the broker is away: then each second is worth a look.
        return int(monotonic()) if self._degraded.on else self._heartbeats.pause_version

    def _announce_after_commit(self) -> None:
        """Have workers read the pauses as soon as they can: after the commit of the caller's transaction, else at once.

        Django has no callback for the end of a transaction that is managed by hand: workers soon read them by
        themselves.
        """
        if self._database.connection.in_atomic_block:
            self._database.connection.on_commit(self._announce, robust=True)
        else:
            self._announce()

    def _announce(self) -> None:
        with contextlib.suppress(DelayqError):  # workers read them soon anyway
            self._heartbeats.announce_pauses()
