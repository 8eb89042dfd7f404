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
    other.queue.maintain(lease_ms=lease_ms)
    assert other.limiter.acquire([OTHER_ASK], lease_ms=lease_ms) != [None]
    broker.limiter.renew([ASK], lease_ms=lease_ms)
    assert other.limiter.acquire([OTHER_ASK], lease_ms=lease_ms) != [None]


def test_a_permit_that_had_lapsed_before_a_jump_ahead_is_free_after_it(
    broker: DatabaseBackend, other: DatabaseBackend, clock: DatabaseClock
) -> None:
    lease_ms = 60_000
    broker.limiter.acquire([ASK], lease_ms=1)
    alive = replace(ASK, value="account:2", interval_us=None)
    broker.limiter.acquire([alive], lease_ms=lease_ms)
    sleep(0.002)
    other.queue.look_again()
    other.queue.maintain(lease_ms=lease_ms)
    clock.jump(3 * lease_ms)
    assert other.limiter.acquire([OTHER_ASK, replace(alive, token=2)], lease_ms=lease_ms)[0] is None
    assert other.limiter.acquire([replace(alive, token=3)], lease_ms=lease_ms) != [None]


def test_a_worker_that_starts_after_a_jump_ahead_leaves_it_too(broker: DatabaseBackend, clock: DatabaseClock) -> None:
    lease_ms = 60_000
    broker.limiter.acquire([ASK], lease_ms=lease_ms)
    clock.jump(3 * lease_ms)
    started = _another()
    started.database.clock_monitor.start(lease_ms)
    assert started.limiter.acquire([OTHER_ASK], lease_ms=lease_ms) != [None]


def test_a_lease_after_a_jump_ahead_the_permit_of_one_that_died_is_free(
    broker: DatabaseBackend, other: DatabaseBackend, clock: DatabaseClock
) -> None:
    broker.limiter.acquire([ASK], lease_ms=LEASE_MS)
    clock.jump(3 * LEASE_MS)
    began_at = monotonic()
    while other.limiter.acquire([OTHER_ASK], lease_ms=LEASE_MS) != [None]:
        assert monotonic() < began_at + PATIENCE_S
        sleep(0.02)
    assert monotonic() - began_at > 0.9 * LEASE_MS / 1000
