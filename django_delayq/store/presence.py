"""Keep what all workers of an alias with a store share: their heartbeats, the pauses and the limits.

The tables keep the pauses, so that they outlive a loss of the broker's data. The broker keeps the heartbeats, and
notifies the workers. It keeps the limits too, if it can. If not, the tables do, by the database's time: core/limits.py
has the arithmetic, and a worker locks the row of a limit's key, so that workers take turns.
"""

import contextlib
from collections.abc import Sequence
from secrets import randbits
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
from django_delayq.store.sql.rows import checked
from django_delayq.support.timestamps import to_epoch_ms

KEPT_MS = 60_000
"""How long a limit's row is kept, at least, after nothing counts any more.

The time of its end is written ahead in whole multiples of this, so it changes seldom: its index keeps each value while
another session keeps a transaction open.
"""


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


def forget_over(database: Database, since_ms: int, now_ms: int) -> None:
    """Remove the rows of limits that were over from `since_ms` to `now_ms`."""
    database.changed(
        f"DELETE FROM delayq_limit WHERE over_ms >= %s AND over_ms < %s AND {checked('alias = %s')}",
        [since_ms, now_ms, database.alias],
    )


@in_transaction
def _acquire(database: Database, limit: Limit, tokens: Sequence[int], lease_ms: int) -> list[Throttled | None]:
    of_turn = _lock(database, limit.key, "") if limit.interval_us or not limit.value else None
    row = _lock(database, limit.key, limit.value) if limit.value or of_turn is None else of_turn
    asked_at = monotonic()
    now_ms = database.now_ms()  # after the wait for the locks
    permits = _permits_of(row)
    if hold_off_ms := database.clock_monitor.hear(now_ms, asked_at, lease_ms):
        permits.hold_until(now_ms + hold_off_ms)
    turn_us = of_turn.turn_us if of_turn else 0
    answers, turn_us = work_out(limit, permits, turn_us, tokens, lease_ms, now_ms * 1000)
    if of_turn is not None and of_turn is not row:
        _write(database, of_turn, _permits_of(of_turn), turn_us, now_ms)
        turn_us = row.turn_us
    _write(database, row, permits, turn_us, now_ms)
    return answers


@in_transaction
def _release(database: Database, limit: Limit, tokens: Sequence[int]) -> None:
    row = _lock(database, limit.key, limit.value)
    permits = _permits_of(row)
    permits.release(tokens)
    _write(database, row, permits, row.turn_us)


def _lock(database: Database, key: str, value: str) -> LimitRow:
    """Lock and return the row of a name, which is inserted if there is none."""
    rows = LimitRow.objects.using(database.using)
    name = {"alias": database.alias, "key": key, "value": value}
    if database.dialect.updates_in_place:
        _insert(database, LimitRow(**name))  # first: SQLite must write before it reads
        return rows.select_for_update().get(**name, version=0)
    newest = rows.filter(**name).order_by("-version").select_for_update()
    row = newest.first()
    if row is None:
        _insert(database, LimitRow(**name))
        row = newest[0]
    return row


def _insert(database: Database, row: LimitRow) -> None:
    """Insert the row of a name without permits, unless there is one of version 0.

    If another worker's row has a higher version by then, that one counts, and this one is forgotten.
    """
    row.slots, row.line_ms, row.since_ms, row.turn_us = "{}", 0, 0, 0
    row.over_ms = RawSQL(f"{database.dialect.now} + %s", [KEPT_MS])  # noqa: S611
    LimitRow.objects.using(database.using).bulk_create([row], ignore_conflicts=True)


def _permits_of(row: LimitRow) -> Permits:
    ends = {int(token): end for token, end in codec.loads(row.slots).items()}
    return Permits(ends, row.line_ms, row.since_ms)


def _write(database: Database, row: LimitRow, permits: Permits, turn_us: int, now_ms: int = 0) -> None:
    """Write what changed of a row that is locked.

    On PostgreSQL the row gets another primary key and a higher version. Otherwise, while another session keeps a
    transaction open, each look at the row would walk over all of its earlier versions, which stay under the same
    entries of the indexes. The version is no lower than the time, because a row that was forgotten begins at 0 again.
    """
    kept_until_ms = KEPT_MS + max([permits.line_ms + LINGER_MS, turn_us // 1000 + 1, *permits.ends.values()])
    values = {
        "slots": codec.dumps({str(token): end for token, end in permits.ends.items()}).decode(),
        "line_ms": permits.line_ms,
        "since_ms": permits.since_ms,
        "turn_us": turn_us,
        "over_ms": row.over_ms if row.over_ms >= kept_until_ms else -(-kept_until_ms // KEPT_MS) * KEPT_MS,
    }
    changed = {name: value for name, value in values.items() if getattr(row, name) != value}
    if changed and not database.dialect.updates_in_place:
        changed |= {"id": randbits(63), "version": max(row.version + 1, now_ms)}
    if changed:
        LimitRow.objects.using(database.using).filter(pk=row.pk).update(**changed)
