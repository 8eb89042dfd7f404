"""Keep the limits of an alias with a store, over all workers.

The broker keeps them if it can. If not, the tables do, by the database's time: core/limits.py has the arithmetic, and a
worker locks the rows that it changes, so that workers take turns. Permits are in a row for each key and value, and
turns by rate in one for each key.
"""

from collections.abc import Sequence
from secrets import randbits
from time import monotonic

from django.db.models.expressions import RawSQL

from django_delayq.brokers.base import Limiter, PermitRequest, Throttled, check_batch, in_order
from django_delayq.core import codec
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.core.limits import LINGER_MS, Limit, Permits, acquire as work_out, by_limit
from django_delayq.models import LimitRow
from django_delayq.store.alarms import Degraded
from django_delayq.store.database import Database, in_transaction
from django_delayq.store.sql.dialect import checked

KEPT_MS = 60_000
"""How long a limit's row is kept, at least, after nothing counts any more.

The time of its end is written ahead in whole multiples of this, so it changes seldom: its index keeps each value while
another session keeps a transaction open.
"""


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

        In the tables, each limit has a transaction of its own, so that no transaction waits for two limits.
        """
        if self._of_broker is not None:
            if self._degraded.is_alone:
                raise BrokerUnavailable("The broker, which keeps the limits, can't be asked: what has limits waits.")
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

    def renew(self, requests: Sequence[PermitRequest], *, lease_ms: int) -> None:
        """Renew as the protocol says, also while the broker is away: it may be back already."""
        if self._of_broker is not None:
            if not self._degraded.foreign:
                self._of_broker.renew(requests, lease_ms=lease_ms)
            return
        check_batch(requests)
        with self._database.available():
            for limit, positions in by_limit(requests).items():
                _renew(self._database, limit, [requests[i].token for i in positions], lease_ms)

    def release(self, requests: Sequence[PermitRequest]) -> None:
        """Release as the protocol says. A broker that is away or another store's is not asked: its permits lapse."""
        if self._of_broker is not None:
            if self._degraded.may_ask:
                self._of_broker.release(requests)
            return
        check_batch(requests)
        with self._database.available():
            for limit, positions in by_limit(requests).items():
                _release(self._database, limit, [requests[i].token for i in positions])


def forget_over(database: Database, since_ms: int, now_ms: int) -> None:
    """Remove the rows of limits that ran out at `since_ms` or later, and before `now_ms`."""
    database.changed(
        f"DELETE FROM delayq_limit WHERE over_ms >= %s AND over_ms < %s AND {checked('alias = %s')}",
        [since_ms, now_ms, database.alias],
    )


@in_transaction
def _acquire(database: Database, limit: Limit, tokens: Sequence[int], lease_ms: int) -> list[Throttled | None]:
    of_turn = _lock(database, limit.key, "") if limit.interval_us or not limit.value else None
    row = _lock(database, limit.key, limit.value) if limit.value or of_turn is None else of_turn
    permits, now_ms = _look(database, row, lease_ms)
    turn_us = of_turn.turn_us if of_turn else 0
    answers, turn_us = work_out(limit, permits, turn_us, tokens, lease_ms, now_ms * 1000)
    if of_turn is not None and of_turn is not row:
        _write(database, of_turn, _permits_of(of_turn), turn_us, now_ms)
        turn_us = row.turn_us
    _write(database, row, permits, turn_us, now_ms)
    return answers


@in_transaction
def _renew(database: Database, limit: Limit, tokens: Sequence[int], lease_ms: int) -> None:
    row = _lock(database, limit.key, limit.value)
    permits, now_ms = _look(database, row, lease_ms)
    for token in tokens:
        permits.take(token, now_ms + lease_ms)
    _write(database, row, permits, row.turn_us, now_ms)


@in_transaction
def _release(database: Database, limit: Limit, tokens: Sequence[int]) -> None:
    row = _lock(database, limit.key, limit.value)
    permits = _permits_of(row)
    permits.release(tokens)
    _write(database, row, permits, row.turn_us)


def _lock(database: Database, key: str, value: str) -> LimitRow:
    """Lock and return the row of a key and value. If there is none, insert it first."""
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
    """Insert a row without permits, unless its key and value have a row of version 0.

    If another worker's row has a higher version by then, that one counts, and this one is forgotten.
    """
    row.slots, row.line_ms, row.since_ms, row.turn_us = "{}", 0, 0, 0
    row.over_ms = RawSQL(f"{database.dialect.now} + %s", [KEPT_MS])  # noqa: S611
    LimitRow.objects.using(database.using).bulk_create([row], ignore_conflicts=True)


def _look(database: Database, row: LimitRow, lease_ms: int) -> tuple[Permits, int]:
    """Return the permits of a locked row, and the time. After a jump of the clock, no permit lapses yet."""
    asked_at = monotonic()
    now_ms = database.now_ms()  # after the wait for the lock
    permits = _permits_of(row)
    if hold_off_ms := database.clock_monitor.hear(now_ms, asked_at, lease_ms):
        permits.hold_until(now_ms + hold_off_ms)
    return permits, now_ms


def _permits_of(row: LimitRow) -> Permits:
    ends = {int(token): end for token, end in codec.loads(row.slots).items()}
    return Permits(ends, row.line_ms, row.since_ms)


def _write(database: Database, row: LimitRow, permits: Permits, turn_us: int, now_ms: int = 0) -> None:
    """Write what changed of a row that is locked.

    On PostgreSQL the row gets another primary key and a higher version. If it kept the old ones, each look at the row
    would walk over all of its earlier versions while another session keeps a transaction open, because these stay under
    the same entries of the indexes. The version is no lower than the time of the last grant, because a row that was
    forgotten begins at 0 again.
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
