"""Limits over all workers where the broker can't keep them: rows, by the database's time.

core/limits.py has the arithmetic. Whoever works on a limit holds the row of its key, so that workers take turns.
"""

from collections.abc import Sequence
from functools import partial
from time import monotonic

from django_delayq.brokers.base import Limiter, PermitRequest, Throttled, check_batch, in_order
from django_delayq.core import codec
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.core.limits import LINGER_MS, Limit, Permits, acquire as work_out, by_limit
from django_delayq.models import LimitRow
from django_delayq.store.database import Database
from django_delayq.store.degraded import Degraded


class DatabaseLimiter:
    """See `Limiter` in brokers/base.py. The broker keeps the limits if it can, else the tables do."""

    def __init__(self, database: Database, of_broker: Limiter | None, degraded: Degraded) -> None:
        self._database = database
        self._of_broker = of_broker
        self._degraded = degraded

    def acquire(self, requests: Sequence[PermitRequest], *, lease_ms: int) -> list[Throttled | None]:
        """Acquire as the protocol says.

        In the tables, each limit is a transaction of its own, so that none waits for two.
        """
        if self._of_broker is not None:
            if self._degraded.is_alone and not all(ask.held for ask in requests):
                raise BrokerUnavailable("The broker, which keeps the limits, is away: what has limits waits.")
            # One node that does not answer tells nothing about the others: no absence begins here.
            return self._of_broker.acquire(requests, lease_ms=lease_ms)
        check_batch(requests)
        limits = by_limit(requests)
        with self._database.available():
            answers = [
                self._database.transaction(
                    partial(_acquire, self._database, limit, [requests[i].token for i in own], lease_ms)
                )
                for limit, own in limits.items()
            ]
        return in_order(limits.values(), answers)

    def release(self, requests: Sequence[PermitRequest]) -> None:
        """Release as the protocol says. A broker that is away is not asked: its permits lapse."""
        if self._of_broker is not None:
            if not self._degraded.is_silent:
                self._of_broker.release(requests)
            return
        check_batch(requests)
        with self._database.available():
            for limit, positions in by_limit(requests).items():
                tokens = [requests[i].token for i in positions]
                self._database.transaction(partial(_release, self._database, limit, tokens))


def forget_over(database: Database, now_ms: int) -> None:
    """Remove the rows of limits, and of heartbeats, that were over before `now_ms`."""
    LimitRow.objects.using(database.using).filter(alias=database.alias, over_ms__lt=now_ms).delete()


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
