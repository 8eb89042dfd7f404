"""Workers that ask for permits of the same values at once lock rows in one order, so that none waits for another's."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from django.db import connections, transaction

from django_delayq.brokers.base import PermitRequest
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


@pytest.mark.parametrize("database", ["postgres_database", "mariadb_database"])
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
