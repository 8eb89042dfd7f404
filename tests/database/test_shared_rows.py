"""Limits and heartbeats cost the same after hundreds of changes, all of which another session's snapshot keeps.

Each is one row that changes all the time. What is counted are pages, as in tests/store/test_buffers.py.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections

from django_delayq.brokers.base import PermitRequest, WorkerInfo
from django_delayq.brokers.database.heartbeats import DatabaseHeartbeats
from django_delayq.store import DatabaseBackend
from django_delayq.store.settle import look_at_leases
from tests.races import while_another_did
from tests.servers import PostgresServer
from tests.store.skewed import DatabaseClock
from tests.store.test_buffers import reading

CHANGES, PERMITS = 150, 40
LEASE_MS = 15_000
MOST = 30
"""Pages of a statement that finds two rows and writes them, with entries in each of three small indexes."""
BEAT_MS = 7_000
WORKERS = [WorkerInfo(name, ["q"], ["k"], 0, 0) for name in ("v", "w")]


@pytest.fixture
def backend(
    postgres_database: str, postgres_server: PostgresServer, new_backend: Callable[[str], DatabaseBackend]
) -> Iterator[DatabaseBackend]:
    """The database alone, beside a transaction that stays open."""
    with postgres_server.client(str(connections.settings[postgres_database]["NAME"])) as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        yield new_backend(postgres_database)


@pytest.fixture
def clock(postgres_database: str) -> Iterator[DatabaseClock]:
    clock = DatabaseClock(postgres_database)
    with clock.in_use():
        yield clock


def _assert_bounded(using: str, work: Callable[[], Any]) -> None:
    with reading(using) as found:
        work()
    told = "\n\n".join(map(str, found))
    assert found, "no statement was seen"
    assert max(one.pages for one in found) <= MOST, told


@pytest.mark.parametrize(
    ("value", "interval_us"), [("", None), ("account:1", 1)], ids=["of a key", "of a value, with turns of the key"]
)
def test_permits_cost_the_same_however_often_they_changed_hands(
    backend: DatabaseBackend, value: str, interval_us: int | None
) -> None:
    limiter, using = backend.limiter, backend.database.using
    requests = [PermitRequest("k", value, token, PERMITS, interval_us) for token in range(PERMITS)]
    for _ in range(CHANGES):
        limiter.acquire(requests, lease_ms=LEASE_MS)
        limiter.renew(requests, lease_ms=LEASE_MS)
        limiter.release(requests)
    _assert_bounded(using, lambda: limiter.acquire(requests, lease_ms=LEASE_MS))
    _assert_bounded(using, lambda: limiter.renew(requests, lease_ms=LEASE_MS))
    _assert_bounded(using, lambda: limiter.release(requests))


@pytest.mark.parametrize("is_new", [True, False], ids=["of a new row", "of a row that was there"])
def test_a_permit_that_another_takes_meanwhile_is_not_granted_again(backend: DatabaseBackend, is_new: bool) -> None:
    first, second = (PermitRequest("k", "", token, 1) for token in (1, 2))
    limiter = backend.limiter
    if not is_new:
        limiter.acquire([first], lease_ms=LEASE_MS)
        limiter.release([first])
    answers = while_another_did(
        backend.database.using,
        lambda: limiter.acquire([first], lease_ms=LEASE_MS),
        lambda: limiter.acquire([second], lease_ms=LEASE_MS),
    )
    assert answers != [None]
    assert limiter.acquire([second], lease_ms=LEASE_MS) != [None]
    limiter.release([first])
    assert limiter.acquire([second], lease_ms=LEASE_MS) == [None]


def test_the_rows_of_two_values_are_locked_in_one_order_whoever_asks(backend: DatabaseBackend) -> None:
    """Otherwise two workers that ask for both could wait for each other."""
    a, b = (PermitRequest("k", value, 1, 1) for value in "ab")
    locks: list[Any] = []

    def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if "FOR UPDATE" in sql:
            locks.append((sql, params))
        return execute(sql, params, many, context)

    backend.limiter.acquire([a, b], lease_ms=LEASE_MS)
    backend.limiter._lock_until["k"] = math.inf
    with connections[backend.database.using].execute_wrapper(note):
        backend.limiter.acquire([a, b], lease_ms=LEASE_MS)
        backend.limiter.acquire([b, a], lease_ms=LEASE_MS)
    assert len(locks) == 2
    assert locks[0] == locks[1]


def test_a_look_for_old_limits_goes_on_where_the_last_one_ended(backend: DatabaseBackend, clock: DatabaseClock) -> None:
    requests = [PermitRequest("k", "", token, PERMITS) for token in range(PERMITS)]
    for _ in range(CHANGES):
        backend.limiter.acquire(requests, lease_ms=LEASE_MS)
        clock.jump(BEAT_MS)
    with reading(backend.database.using) as found:
        position = look_at_leases(backend.database).position
        look_at_leases(backend.database, position)
    first, following = (one.pages for one in found)
    assert following < first - CHANGES / 20


def test_heartbeats_cost_the_same_however_many_there_were(backend: DatabaseBackend, clock: DatabaseClock) -> None:
    for _ in range(CHANGES):
        for worker in WORKERS:
            backend.presence.heartbeat(worker)
        clock.jump(BEAT_MS)
    using = backend.database.using
    _assert_bounded(using, lambda: backend.presence.heartbeat(WORKERS[0]))
    heartbeats = backend.queue.broker.presence
    assert isinstance(heartbeats, DatabaseHeartbeats)
    _assert_bounded(using, heartbeats.read_workers)
    assert [worker.name for worker in heartbeats.read_workers()] == ["v", "w"]
