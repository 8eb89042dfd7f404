"""Keep the heartbeats of an alias with a store, its pauses and its lanes.

The tables keep the pauses and the lanes, so that they outlive a loss of the broker's data. The broker keeps the
heartbeats, and notifies the workers.
"""

import contextlib
from collections.abc import Collection
from functools import partial
from time import monotonic

from django.db.models.expressions import RawSQL

from django_delayq.brokers.base import (
    Broker,
    Heard,
    Heartbeats,
    Pause,
    WorkerInfo,
)
from django_delayq.core.errors import DelayqError, ForeignMark
from django_delayq.models import LaneRow, PauseRow
from django_delayq.store.alarms import Degraded
from django_delayq.store.database import Database
from django_delayq.store.mark import Mark
from django_delayq.support.timestamps import to_epoch_ms


class DatabasePresence:
    """The presence of an alias with a store. See `Presence` in brokers/base.py."""

    def __init__(self, database: Database, broker: Broker, degraded: Degraded, mark: Mark) -> None:
        self._database = database
        self._heartbeats = broker.presence
        self._degraded = degraded
        self._mark = mark
        self._reads_rows = broker.window is None  # its timer tells of pauses: with their commit, or each second

    def heartbeat(self, worker: WorkerInfo) -> Heard:
        if self._reads_rows:
            return self._heartbeats.heartbeat(worker)
        heard = self._beat(worker)
        return heard._replace(pauses=self.pauses(), lanes=self.lanes())

    def _beat(self, worker: WorkerInfo) -> Heard:
        """Send a heartbeat to the broker, unless only the tables may be asked."""
        if self._degraded.is_alone:
            return Heard()
        try:
            self._mark.set()
            return self._heartbeats.heartbeat(worker)
        except ForeignMark:  # the maintenance of the tables tells of it
            self._degraded.begin_foreign()
            return Heard()
        except Exception as error:  # noqa: BLE001 - what the tables tell must not wait for the broker
            return Heard(error=error)

    def leave(self, worker: str) -> None:
        self._mark.check()
        self._heartbeats.leave(worker)

    def workers(self) -> list[WorkerInfo]:
        self._mark.check()
        return self._heartbeats.workers()

    def pause(self, pause: Pause) -> None:
        with self._database.available():
            _keep_pause(self._database, pause)
        announce_after_commit(self._database, self._heartbeats, self._mark)

    def resume(self, queue: str | None, key: str | None) -> bool:
        with self._database.available():
            resumed = _drop_pause(self._database, queue, key)
        announce_after_commit(self._database, self._heartbeats, self._mark)
        return resumed

    def pauses(self) -> list[Pause]:
        with self._database.available():
            return _pauses_in_force(self._database)

    def lanes(self) -> Collection[str]:
        with self._database.available(), self._database.telling_what_it_lacks():
            return read_lanes(self._database)

    @property
    def pause_version(self) -> int:
        # Nobody announces pauses while the broker is away, so the version changes each second, and they are read again.
        return int(monotonic()) if self._degraded.on else self._heartbeats.pause_version


def read_lanes(database: Database) -> set[str]:
    """Return the lanes to which messages were sent. `note_lanes` (lanes.py) writes them."""
    rows = LaneRow.objects.using(database.using).filter(alias=database.alias)
    return set(rows.values_list("name", flat=True))


def announce_after_commit(database: Database, heartbeats: Heartbeats, mark: Mark) -> None:
    """Notify the workers once the caller's transaction commits, or at once outside of `atomic()`.

    Django has no callback for the commit of a transaction that is managed by hand. In one, workers are notified before
    the commit, may find nothing new, and learn of the pause or the lane with their next heartbeat.
    """
    if database.connection.in_atomic_block:
        database.connection.on_commit(partial(_announce, heartbeats, mark), robust=True)
    else:
        _announce(heartbeats, mark)


def _announce(heartbeats: Heartbeats, mark: Mark) -> None:
    with contextlib.suppress(DelayqError):  # workers read them soon anyway
        mark.check()
        heartbeats.announce_pauses()


def _keep_pause(database: Database, pause: Pause) -> None:
    """Store a pause, in place of an earlier one of the same queue and key."""
    row = PauseRow(
        alias=database.alias,
        queue=pause.queue or "",
        key=pause.key or "",
        reason=pause.reason,
        paused_at=database.now_ms(),
        until=pause.until_ms,
    )
    names_target = database.connection.features.supports_update_conflicts_with_target  # MySQL finds it by itself
    # One statement: update_or_create sets a savepoint, which SQLite would commit in a transaction managed by hand.
    PauseRow.objects.using(database.using).bulk_create(
        [row],
        update_conflicts=True,
        update_fields=["reason", "paused_at", "until"],
        unique_fields=["alias", "queue", "key"] if names_target else None,
    )


def _drop_pause(database: Database, queue: str | None, key: str | None) -> bool:
    """Drop a pause. Return whether it was in force."""
    was_in_force = any((each.queue, each.key) == (queue, key) for each in _pauses_in_force(database))
    rows = PauseRow.objects.using(database.using)
    rows.filter(alias=database.alias, queue=queue or "", key=key or "").delete()
    return was_in_force


def _pauses_in_force(database: Database) -> list[Pause]:
    """Return the pauses in force, by queue and key."""
    rows = PauseRow.objects.using(database.using).filter(alias=database.alias)
    found = [(_pause_of(row), row.now_ms) for row in rows.annotate(now_ms=RawSQL(database.dialect.now, []))]  # noqa: S611
    in_force = [each for each, now_ms in found if each.holds(now_ms)]
    return sorted(in_force, key=lambda each: (each.queue or "", each.key or ""))


def _pause_of(row: PauseRow) -> Pause:
    until_ms = None if row.until is None else to_epoch_ms(row.until)
    return Pause(row.queue or None, row.key or None, row.reason, until_ms, to_epoch_ms(row.paused_at))
