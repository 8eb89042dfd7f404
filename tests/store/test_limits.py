"""Limits with a store: the clock keeps them if it can, else the tables; tests/brokers holds both to the promises."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic, sleep
from typing import Any
from unittest.mock import Mock

import pytest

from django_delayq.brokers.base import PermitRequest
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.conf import Alias, Store, get_alias
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.models import LimitRow
from django_delayq.store import DatabaseBackend
from tests.store.skewed import DatabaseClock
from tests.store.support import clock_of
from tests.worker.rig import PATIENCE_S

ASK = PermitRequest("k", "account:1", 1, 1, 1_000)
OTHER_ASK = replace(ASK, token=2)
LEASE_MS = 1_000


class NoLimits(MemoryBroker):
    """Keeps none, as RabbitMQ."""

    def __init__(self, alias: Alias, *options: Any) -> None:
        super().__init__(alias, *options)
        self.limiter = None  # type: ignore[assignment]


@pytest.fixture
def database(sqlite_database: str) -> str:
    """One database: tests/brokers has the others."""
    return sqlite_database


@pytest.fixture
def without_limits(stored_delayq: dict[str, Any]) -> DatabaseBackend:
    return _without_limits()


def _without_limits() -> DatabaseBackend:
    alias: Alias = get_alias()
    return DatabaseBackend(alias, Store(), NoLimits(alias))


@pytest.fixture
def clock(database: str) -> Iterator[DatabaseClock]:
    """The clock of the database."""
    clock = DatabaseClock(database)
    with clock.in_use():
        yield clock


@pytest.fixture
def other(without_limits: DatabaseBackend) -> DatabaseBackend:
    """Return the backend of another worker, which has looked at the clock before it jumps."""
    other = _without_limits()
    other.queue.maintain(lease_ms=LEASE_MS)
    return other


def test_a_clock_that_can_keeps_them(broker: DatabaseBackend) -> None:
    assert broker.limiter.acquire([ASK], lease_ms=LEASE_MS) == [None]
    assert clock_of(broker).limiter.acquire([PermitRequest("k", "account:1", 2, 1)], lease_ms=LEASE_MS) != [None]
    broker.limiter.release([ASK])
    assert clock_of(broker).limiter.acquire([PermitRequest("k", "account:1", 2, 1)], lease_ms=LEASE_MS) == [None]


def test_what_has_limits_waits_for_a_clock_that_is_away_and_nobody_asks_it(broker: DatabaseBackend) -> None:
    broker.degraded.on = True
    with contextlib.suppress(BrokerUnavailable):
        broker.degraded.ask(Mock(side_effect=BrokerUnavailable("It is away.")))
    with pytest.raises(BrokerUnavailable, match="what has limits waits"):
        broker.limiter.acquire([ASK], lease_ms=LEASE_MS)


def test_what_runs_holds_its_permit_at_a_clock_that_is_back_before_anything_is_claimed_by_it(
    broker: DatabaseBackend,
) -> None:
    broker.degraded.on = True
    broker.limiter.renew([ASK], lease_ms=LEASE_MS)
    assert clock_of(broker).limiter.acquire([PermitRequest("k", "account:1", 2, 1)], lease_ms=LEASE_MS) != [None]


def test_rows_of_what_counts_no_more_are_removed(without_limits: DatabaseBackend, database: str) -> None:
    rows = LimitRow.objects.using(database)
    without_limits.limiter.acquire([ASK, PermitRequest("l", "", 2, 1)], lease_ms=60_000)
    without_limits.limiter.release([ASK])
    rows.filter(key="k").update(over_ms=0)
    without_limits.queue.maintain(lease_ms=60_000)
    assert [(row.key, row.value) for row in rows.all()] == [("l", "")]


def test_after_a_jump_ahead_a_permit_is_left_to_who_renews_it(
    without_limits: DatabaseBackend, other: DatabaseBackend, clock: DatabaseClock
) -> None:
    lease_ms = 60_000
    without_limits.limiter.acquire([ASK], lease_ms=lease_ms)
    clock.jump(3 * lease_ms)
    other.queue.maintain(lease_ms=lease_ms)
    assert other.limiter.acquire([OTHER_ASK], lease_ms=lease_ms) != [None]
    without_limits.limiter.renew([ASK], lease_ms=lease_ms)
    assert other.limiter.acquire([OTHER_ASK], lease_ms=lease_ms) != [None]


def test_a_worker_that_starts_after_a_jump_ahead_leaves_it_too(
    without_limits: DatabaseBackend, clock: DatabaseClock
) -> None:
    lease_ms = 60_000
    without_limits.limiter.acquire([ASK], lease_ms=lease_ms)
    clock.jump(3 * lease_ms)
    started = _without_limits()
    started.database.clock_monitor.start(lease_ms)
    assert started.limiter.acquire([OTHER_ASK], lease_ms=lease_ms) != [None]


def test_a_lease_after_a_jump_ahead_the_permit_of_one_that_died_is_free(
    without_limits: DatabaseBackend, other: DatabaseBackend, clock: DatabaseClock
) -> None:
    without_limits.limiter.acquire([ASK], lease_ms=LEASE_MS)
    clock.jump(3 * LEASE_MS)
    began_at = monotonic()
    while other.limiter.acquire([OTHER_ASK], lease_ms=LEASE_MS) != [None]:
        assert monotonic() < began_at + PATIENCE_S
        sleep(0.02)
    assert monotonic() - began_at > 0.9 * LEASE_MS / 1000
