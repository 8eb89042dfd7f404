"""Keep what all workers of an alias with a store share: their heartbeats, the pauses and the limits.

The tables keep the pauses, so that they outlive a loss of the broker's data. The broker keeps the heartbeats, and
notifies the workers. It keeps the limits too, if it can. If not, the tables do, by the database's time: core/limits.py
has the arithmetic, and a worker locks the row of a limit's key, so that workers take turns.
"""

import contextlib
from collections.abc import Sequence
from time import monotonic

from django.db.models.expressions import RawSQL

from django_delayq.brokers.base import (
    Broker,
    Heard,
    Limiter,
    Pause,
    PermitRequest,
    Throttled,
    WorkerInfo,
    check_batch,
    in_order,
)
from django_delayq.conf import Alias
from django_delayq.core import codec
from django_delayq.core.errors import BrokerUnavailable, DelayqError
from django_delayq.core.limits import LINGER_MS, Limit, Permits, acquire as work_out, by_limit
from django_delayq.models import LimitRow, PauseRow
from django_delayq.store.alarms import Degraded, own_timer
from django_delayq.store.database import Database, in_transaction
from django_delayq.support.timestamps import to_epoch_ms


class DatabasePresence:
    """The presence of an alias with a store. See `Presence` in brokers/base.py."""

    def __init__(self, alias: Alias, database: Database, broker: Broker, degraded: Degraded) -> None:
        self._alias = alias
        self._database = database
        self._heartbeats = broker.presence
        self._window = broker.window
        self._degraded = degraded
        self._reads_rows = broker.window is None  # its timer tells of pauses: with their commit, or each second

    def heartbeat(self, worker: WorkerInfo) -> Heard:
        if self._reads_rows:
            return self._heartbeats.heartbeat(worker)
        heard = Heard()
        if not self._degraded.is_alone:
            own_timer(self._database, self._alias, self._window)
            heard = self._heartbeats.heartbeat(worker)
        return Heard(self.pauses(), heard.workers)

    def leave(self, worker: str) -> None:
        self._heartbeats.leave(worker)

    def workers(self) -> list[WorkerInfo]:
        return self._heartbeats.workers()

    def pause(self, pause: Pause) -> None:
        with self._database.available():
            _keep_pause(self._database, pause)
        self._announce_after_commit()

    def resume(self, queue: str | None, key: str | None) -> bool:
        with self._database.available():
            resumed = _drop_pause(self._database, queue, key)
        self._announce_after_commit()
        return resumed

    def pauses(self) -> list[Pause]:
        with self._database.available():
            return _pauses_in_force(self._database)

    @property
    def pause_version(self) -> int:
        # Nobody announces pauses while the broker is away, so the version changes each second, and they are read again.
        return int(monotonic()) if self._degraded.on else self._heartbeats.pause_version

    def _announce_after_commit(self) -> None:
        """Notify the workers once the caller's transaction commits, or at once outside of `atomic()`.

        Django has no callback for the commit of a transaction that is managed by hand. In one, workers are notified
        before the commit, may find nothing new, and learn of the pause with their next heartbeat.
        """
        if self._database.connection.in_atomic_block:
            self._database.connection.on_commit(self._announce, robust=True)
        else:
            self._announce()

    def _announce(self) -> None:
        with contextlib.suppress(DelayqError):  # workers read them soon anyway
            self._heartbeats.announce_pauses()


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


class DatabaseLimiter:
    """The limiter of an alias with a store: the broker keeps the limits if it can, and otherwise the tables do.

    See `Limiter` in brokers/base.py.
    """

    def __init__(self, database: Database, of_broker: Limiter | None, degraded: Degraded) -> None:
        self._database = database
        self._of_broker = of_broker
        self._degraded = degraded

    def acquire(self, requests: Sequence[PermitRequest], *, lease_ms: int) -> list[Throttled | None]:
        """Acquire as the protocol says.

        In the tables, each limit is a transaction of its own, so that no transaction waits for two.
        """
        if self._of_broker is not None:
            if self._degraded.is_alone and not all(request.held for request in requests):
                raise BrokerUnavailable("The broker, which keeps the limits, is away: what has limits waits.")
            # One node that does not answer tells nothing about the others, so this call is not counted against the
            # timer.
            return self._of_broker.acquire(requests, lease_ms=lease_ms)
        check_batch(requests)
        limits = by_limit(requests)
        with self._database.available():
            answers = [
                _acquire(self._database, limit, [requests[i].token for i in own], lease_ms)
                for limit, own in limits.items()
            ]
        return in_order(limits.values(), answers)

    def release(self, requests: Sequence[PermitRequest]) -> None:
        """Release as the protocol says. A broker that is away is not asked: its permits lapse."""
        if self._of_broker is not None:
            if self._degraded.silent_since is None:
                self._of_broker.release(requests)
            return
        check_batch(requests)
        with self._database.available():
            for limit, positions in by_limit(requests).items():
                _release(self._database, limit, [requests[i].token for i in positions])


def forget_over(database: Database, now_ms: int) -> None:
    """Remove the rows of limits that were over before `now_ms`. Old heartbeats, which are in the same table, go too."""
    LimitRow.objects.using(database.using).filter(alias=database.alias, over_ms__lt=now_ms).delete()


@in_transaction
def _acquire(database: Database, limit: Limit, tokens: Sequence[int], lease_ms: int) -> list[Throttled | None]:
    of_key = _lock(database, limit.key, "")
    of_value = _lock(database, limit.key, limit.value) if limit.value else of_key
    asked_at = monotonic()
    now_ms = database.now_ms()  # after the wait for the locks
    permits = _permits_of(of_value)
    if hold_off_ms := database.clock_monitor.hear(now_ms, asked_at, lease_ms):
        permits.hold_until(now_ms + hold_off_ms)
    answers, of_key.turn_us = work_out(limit, permits, of_key.turn_us, tokens, lease_ms, now_ms * 1000)
    _write(of_value, permits)
    if of_key is not of_value:
        _write(of_key, _permits_of(of_key))
    return answers


@in_transaction
def _release(database: Database, limit: Limit, tokens: Sequence[int]) -> None:
    row = _lock(database, limit.key, limit.value)
    permits = _permits_of(row)
    permits.release(tokens)
    _write(row, permits)


def _lock(database: Database, key: str, value: str) -> LimitRow:
    rows = LimitRow.objects.using(database.using)
    name = {"alias": database.alias, "key": key, "value": value}
    new = LimitRow(**name, slots="{}", line_ms=0, since_ms=0, turn_us=0, over_ms=0)
    rows.bulk_create([new], ignore_conflicts=True)
    return rows.select_for_update().get(**name)


def _permits_of(row: LimitRow) -> Permits:
    ends = {int(token): end for token, end in codec.loads(row.slots).items()}
    return Permits(ends, row.line_ms, row.since_ms)


def _write(row: LimitRow, permits: Permits) -> None:
    row.slots = codec.dumps({str(token): end for token, end in permits.ends.items()}).decode()
    row.line_ms, row.since_ms = permits.line_ms, permits.since_ms
    row.over_ms = max([permits.line_ms + LINGER_MS, row.turn_us // 1000 + 1, *permits.ends.values()])
    row.save()
