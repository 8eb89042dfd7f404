"""Limits with a store: the tables keep them, whatever the broker does; tests/brokers holds them to the promises."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic, sleep
from unittest.mock import Mock

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_delayq.brokers.base import BATCH, PermitRequest
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.conf import Store, get_alias
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.core.limits import LEAST_STEP_MS
from django_delayq.models import LimitRow
from django_delayq.store import DatabaseBackend
from tests.servers import Server
from tests.store.skewed import DatabaseClock
from tests.store.support import clock_of
from tests.worker.rig import PATIENCE_S

ASK = PermitRequest("k", "account:1", 1, 1, 1_000)
OTHER_ASK = replace(ASK, token=2)
LEASE_MS, HOUR_MS = 1_000, 3_600_000


@pytest.fixture
def database(sqlite_database: str) -> str:
    """One database: tests/brokers has the others."""
    return sqlite_database


def _another() -> DatabaseBackend:
    """Return the backend of another worker."""
    alias = get_alias()
    return DatabaseBackend(alias, Store(), MemoryBroker(alias))


@pytest.fixture
def clock(database: str) -> Iterator[DatabaseClock]:
    """The clock of the database."""
    clock = DatabaseClock(database)
    with clock.in_use():
        yield clock


@pytest.fixture
def other(broker: DatabaseBackend) -> DatabaseBackend:
    """Return the backend of another worker, which has looked at the clock before it jumps."""
    other = _another()
    other.queue.maintain(lease_ms=LEASE_MS)
    return other


def test_nobody_who_writes_to_the_broker_moves_a_limit(broker: DatabaseBackend, redis_server: Server) -> None:
    assert broker.limiter.acquire([ASK], lease_ms=LEASE_MS) == [None]
    with redis_server.client() as client:
        assert not [key for key in client.scan_iter() if b"limit" in key]
        client.flushall()
    assert broker.limiter.acquire([OTHER_ASK], lease_ms=LEASE_MS) != [None]
    broker.limiter.release([ASK])
    clock_of(broker).limiter.acquire([replace(ASK, token=3)], lease_ms=HOUR_MS)
    assert broker.limiter.acquire([replace(OTHER_ASK, interval_us=None)], lease_ms=LEASE_MS) == [None]


def test_limits_hold_while_the_broker_is_away(broker: DatabaseBackend) -> None:
    broker.degraded.on = True
    with contextlib.suppress(BrokerUnavailable):
        broker.degraded.ask(Mock(side_effect=BrokerUnavailable("It is away.")))
    assert broker.limiter.acquire([ASK], lease_ms=LEASE_MS) == [None]
    broker.limiter.renew([ASK], lease_ms=LEASE_MS)
    assert broker.limiter.acquire([OTHER_ASK], lease_ms=LEASE_MS) != [None]
    broker.limiter.release([ASK])
    assert broker.limiter.acquire([replace(OTHER_ASK, interval_us=None)], lease_ms=LEASE_MS) == [None]


@pytest.mark.parametrize("interval_us", [None, 1])
def test_the_permits_of_many_values_take_as_many_statements_as_that_of_one(
    broker: DatabaseBackend, database: str, interval_us: int | None
) -> None:
    def statements(values: int) -> int:
        requests = [PermitRequest("k", f"account:{n}", n, 1, interval_us) for n in range(values)]
        broker.limiter.acquire(requests, lease_ms=LEASE_MS)
        with CaptureQueriesContext(connections[database]) as captured:
            broker.limiter.renew(requests, lease_ms=2 * LEASE_MS)
            broker.limiter.release(requests)
            broker.limiter.acquire(requests, lease_ms=LEASE_MS)
        return len(captured)

    assert statements(BATCH) == statements(1)


def test_rows_of_what_counts_no_more_are_removed(broker: DatabaseBackend, database: str) -> None:
    rows = LimitRow.objects.using(database)
    broker.limiter.acquire([ASK, PermitRequest("l", "", 2, 1)], lease_ms=60_000)
    broker.limiter.release([ASK])
    rows.filter(key="k").update(over_ms=0)
    broker.queue.maintain(lease_ms=60_000)
    assert [(row.key, row.value) for row in rows.all()] == [("l", "")]


def test_a_release_that_comes_late_inserts_no_row(broker: DatabaseBackend, database: str) -> None:
    broker.limiter.release([ASK])
    assert not LimitRow.objects.using(database).exists()


def test_after_a_jump_ahead_a_permit_is_left_to_who_renews_it(
    broker: DatabaseBackend, other: DatabaseBackend, clock: DatabaseClock
) -> None:
    lease_ms = 60_000
    broker.limiter.acquire([ASK], lease_ms=lease_ms)
    clock.jump(3 * lease_ms)
    assert other.limiter.acquire([OTHER_ASK], lease_ms=lease_ms) != [None]
    broker.limiter.renew([ASK], lease_ms=lease_ms)
    clock.jump(lease_ms // 2)
    assert other.limiter.acquire([OTHER_ASK], lease_ms=lease_ms) != [None]


def test_whoever_renews_first_after_a_jump_ahead_leaves_the_permits_of_others_to_them(
    broker: DatabaseBackend, other: DatabaseBackend, clock: DatabaseClock
) -> None:
    lease_ms, asks = 60_000, [PermitRequest("k", "", token, 2) for token in range(3)]
    assert broker.limiter.acquire(asks[:2], lease_ms=lease_ms) == [None, None]
    clock.jump(3 * lease_ms)
    broker.limiter.renew(asks[:1], lease_ms=lease_ms)
    assert other.limiter.acquire(asks[2:], lease_ms=lease_ms) != [None]


def test_a_permit_that_had_lapsed_before_a_jump_ahead_is_free_after_it(
    broker: DatabaseBackend, other: DatabaseBackend, clock: DatabaseClock
) -> None:
    lease_ms = 60_000
    broker.limiter.acquire([ASK], lease_ms=lease_ms)
    clock.jump(lease_ms // 2)
    other.limiter.acquire([OTHER_ASK], lease_ms=lease_ms)
    clock.jump(3 * lease_ms)
    assert other.limiter.acquire([OTHER_ASK], lease_ms=lease_ms) == [None]


def test_half_a_lease_after_a_jump_ahead_the_permit_of_one_that_died_is_free(
    broker: DatabaseBackend, other: DatabaseBackend, clock: DatabaseClock
) -> None:
    broker.limiter.acquire([ASK], lease_ms=LEASE_MS)
    clock.jump(3 * LEASE_MS)
    began_at = monotonic()
    while other.limiter.acquire([OTHER_ASK], lease_ms=LEASE_MS) != [None]:
        assert monotonic() < began_at + PATIENCE_S
        sleep(0.02)
    assert monotonic() - began_at > 0.4 * LEASE_MS / 1000


def test_a_step_back_of_the_clock_makes_nobody_wait_for_longer(
    broker: DatabaseBackend, other: DatabaseBackend, clock: DatabaseClock
) -> None:
    lease_ms, ask = 60_000, replace(ASK, interval_us=None)
    broker.limiter.acquire([ask], lease_ms=lease_ms)
    (before,) = other.limiter.acquire([replace(ask, token=2)], lease_ms=lease_ms)
    clock.jump(-HOUR_MS)
    (after,) = other.limiter.acquire([replace(ask, token=3)], lease_ms=lease_ms)
    assert before is not None
    assert after is not None
    assert after.wait_ms <= before.wait_ms + 2 * LEAST_STEP_MS
    clock.jump(lease_ms // 2)
    other.limiter.acquire([replace(ask, token=4)], lease_ms=lease_ms)
    clock.jump(lease_ms // 2)
    assert other.limiter.acquire([replace(ask, token=5)], lease_ms=lease_ms) == [None]


def test_a_renewal_after_a_step_back_of_the_clock_holds(
    broker: DatabaseBackend, other: DatabaseBackend, clock: DatabaseClock
) -> None:
    asks = [PermitRequest("k", "", token, 1) for token in range(2)]
    broker.limiter.acquire(asks[:1], lease_ms=60_000)
    clock.jump(-HOUR_MS)
    broker.limiter.renew(asks[:1], lease_ms=60_000)
    assert other.limiter.acquire(asks[1:], lease_ms=60_000) != [None]
