"""Workers that ask for permits of the same values at once lock rows in one order, so that none waits for another's."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import replace

import pytest
from django.db import connections, transaction

from django_delayq.brokers.base import PermitRequest
from django_delayq.core.errors import StoreUnavailable
from django_delayq.models import LimitRow
from django_delayq.store import DatabaseBackend
from tests.races import waits_for_a_lock
from tests.servers.cluster import until
from tests.worker.rig import PATIENCE_S

A, B = (PermitRequest("k", value, 1, 1) for value in "ab")
LEASE_MS = 15_000


@contextmanager
def _another_does(work: Callable[[], object]) -> Iterator[None]:
    """Let another worker do `work` during the block, which it must end soon after."""

    def run() -> None:
        try:
            work()
        finally:
            connections.close_all()

    other = threading.Thread(target=run)
    other.start()
    yield
    other.join(PATIENCE_S)
    assert not other.is_alive()


SERVERS = pytest.mark.parametrize("database", ["postgres_database", "mariadb_database"])


@SERVERS
def test_rows_are_locked_in_the_order_of_their_values(
    request: pytest.FixtureRequest, database: str, new_backend: Callable[[str], DatabaseBackend]
) -> None:
    using = request.getfixturevalue(database)
    backend, rows = new_backend(using), LimitRow.objects.using(using)
    for one in (B, A):  # so that their primary keys have the other order
        backend.limiter.acquire([one], lease_ms=LEASE_MS)
    looker = connections[using].copy()

    def is_a_locked() -> bool:
        with looker.cursor() as cursor:
            cursor.execute("SELECT id FROM delayq_limit WHERE value = 'a' FOR UPDATE SKIP LOCKED")
            return not cursor.fetchall()

    held, seen = threading.Event(), threading.Event()

    def hold_b() -> None:
        with transaction.atomic(using=using):
            rows.select_for_update().get(value="b")
            held.set()
            seen.wait(PATIENCE_S)

    with _another_does(hold_b):
        assert held.wait(PATIENCE_S)
        with _another_does(lambda: backend.limiter.renew([B, A], lease_ms=LEASE_MS)):
            until(is_a_locked)
            seen.set()
    looker.close()


@SERVERS
def test_a_row_that_another_session_keeps_locked_is_not_waited_for(
    request: pytest.FixtureRequest, database: str, new_backend: Callable[[str], DatabaseBackend]
) -> None:
    using = request.getfixturevalue(database)
    limiter, rows = new_backend(using).limiter, LimitRow.objects.using(using)
    limiter.acquire([A], lease_ms=LEASE_MS)
    locked, tried = threading.Event(), threading.Event()

    def stand_still() -> None:
        with transaction.atomic(using=using):
            rows.select_for_update().get(value="a")
            locked.set()
            assert tried.wait(PATIENCE_S)

    said = r"Database '\w+': the limits of 'k' are locked by another session"
    with _another_does(stand_still):
        assert locked.wait(PATIENCE_S)
        with pytest.raises(StoreUnavailable, match=said):
            limiter.acquire([replace(A, token=2), B], lease_ms=LEASE_MS)
        with pytest.raises(StoreUnavailable, match=said):
            limiter.renew([A], lease_ms=LEASE_MS)
        with pytest.raises(StoreUnavailable, match=said):
            limiter.release([A])
        assert limiter.acquire([B], lease_ms=LEASE_MS) == [None]
        tried.set()
    assert limiter.acquire([replace(A, token=2)], lease_ms=LEASE_MS) != [None]


@SERVERS
def test_a_row_that_another_session_keeps_inserting_is_not_waited_for(
    request: pytest.FixtureRequest, database: str, new_backend: Callable[[str], DatabaseBackend]
) -> None:
    using = request.getfixturevalue(database)
    limiter = new_backend(using).limiter
    inserted, tried = threading.Event(), threading.Event()

    def stand_still() -> None:
        with transaction.atomic(using=using):
            limiter.acquire([A], lease_ms=LEASE_MS)
            inserted.set()
            assert tried.wait(PATIENCE_S)

    with _another_does(stand_still):
        assert inserted.wait(PATIENCE_S)
        with pytest.raises(StoreUnavailable, match="are locked by another session"):
            limiter.acquire([replace(A, token=2)], lease_ms=LEASE_MS)
        tried.set()


@SERVERS
def test_old_rows_are_removed_although_another_session_keeps_one_locked(
    request: pytest.FixtureRequest, database: str, new_backend: Callable[[str], DatabaseBackend]
) -> None:
    using = request.getfixturevalue(database)
    backend, rows = new_backend(using), LimitRow.objects.using(using)
    backend.limiter.acquire([A, B], lease_ms=LEASE_MS)
    rows.update(over_ms=1)
    locked, tried = threading.Event(), threading.Event()

    def stand_still() -> None:
        with transaction.atomic(using=using):
            rows.select_for_update().get(value="a")
            locked.set()
            assert tried.wait(PATIENCE_S)

    with _another_does(stand_still):
        assert locked.wait(PATIENCE_S)
        backend.queue.maintain(lease_ms=LEASE_MS)
        assert [row.value for row in rows.all()] == ["a"]
        tried.set()


@SERVERS
def test_a_process_that_is_frozen_while_it_has_a_row_locked_loses_it(
    request: pytest.FixtureRequest,
    database: str,
    new_backend: Callable[[str], DatabaseBackend],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen, other = (new_backend(request.getfixturevalue(database)) for _ in "ab")
    other.limiter.acquire([A], lease_ms=LEASE_MS)
    soon = copy(frozen.database.dialect)
    soon.brief = soon.brief.replace("15000", "1000").replace("15", "1")
    monkeypatch.setattr(frozen.database, "dialect", soon)
    acquired: list[object] = []
    given_up = threading.Event()

    def acquire_elsewhere() -> None:
        while not (acquired or given_up.is_set()):
            with suppress(StoreUnavailable):
                acquired.append(other.limiter.acquire([A], lease_ms=LEASE_MS))
        connections.close_all()

    def stand_still() -> int:
        elsewhere = threading.Thread(target=acquire_elsewhere)
        elsewhere.start()
        elsewhere.join(PATIENCE_S)
        given_up.set()
        return real_now_ms()

    real_now_ms = frozen.database.now_ms
    monkeypatch.setattr(frozen.database, "now_ms", stand_still)
    with pytest.raises(StoreUnavailable):
        frozen.limiter.acquire([A], lease_ms=LEASE_MS)
    assert acquired == [[None]]


def test_who_waits_for_the_insert_of_a_row_holds_no_other(
    postgres_database: str, new_backend: Callable[[str], DatabaseBackend]
) -> None:
    backend = new_backend(postgres_database)
    limiter = backend.limiter
    limiter.acquire([B], lease_ms=LEASE_MS)
    with ExitStack() as ended, transaction.atomic(using=postgres_database):
        limiter.acquire([A], lease_ms=LEASE_MS)
        ended.enter_context(_another_does(lambda: limiter.acquire([A, B], lease_ms=LEASE_MS)))
        until(lambda: waits_for_a_lock(postgres_database))
        with connections[postgres_database].cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = 200")
        limiter.release([B])
