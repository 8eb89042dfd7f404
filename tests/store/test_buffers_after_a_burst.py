"""No hot statement slows down by what has ended: 50,000 rows that another session's snapshot keeps.

The uses are those of test_buffers.py, and so are the bounds, for which ten times as many dead rows make little
difference. Each runs in a transaction that is rolled back, so that one burst does for all of them.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections, transaction

from django_delayq.brokers.base import BATCH, NewMessage, pages
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.conf import Alias
from django_delayq.store import enqueue
from django_delayq.store.database import Database
from django_delayq.store.polling import LATE_COMMITS_MS
from tests.databases import database_on
from tests.servers import PostgresServer
from tests.store.skewed import DatabaseClock
from tests.store.test_buffers import FROM_THE_LOW_END, HEADER, SENT, USES, Scene, reading

DEAD = 50_000
DEEPER = 1.5
"""Pages to those of a small table: the indexes have a level more, and rows have versions of uses that ran before."""
DATA = b'"' + b"x" * 1_000 + b'"'
"""Of what has ended: it lies seven a page, in two versions each, so that whoever walks over it reads 16,000 pages."""
PAST_DEAD = 2 * DEAD // 5
"""Pages of looks that begin at the low end of an index."""


@pytest.fixture(scope="module")
def burst(postgres_server: PostgresServer, django_db_blocker: Any) -> Iterator[Scene]:
    """A store after a burst, in a transaction that keeps it all, and others that wait."""
    with django_db_blocker.unblock(), database_on(postgres_server) as using:
        name = str(connections.settings[using]["NAME"])
        with postgres_server.client(name) as other, postgres_server.client(name) as client:
            for table in "ready", "finish", "error", "figure":
                client.execute(f"ALTER TABLE delayq_{table} SET (autovacuum_enabled = false)")
            other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            other.execute("SELECT 1")
            scene = Scene(Database("default", using), MemoryBroker(Alias("clock")))
            earlier = DatabaseClock(using)
            earlier.jump(-2 * LATE_COMMITS_MS)  # so that no claim that goes on where the last one ended begins there
            with earlier.in_use():
                _send(scene, "dead", DEAD, DATA)
            client.execute("UPDATE delayq_ready SET token = 1, worker = 'w', lease_until = due_at + 15000")
            client.execute("DELETE FROM delayq_ready")
            _send(scene, "message", SENT, b"1")
            yield scene


def _send(scene: Scene, name: str, count: int, data: bytes) -> None:
    new = [NewMessage(f"{name}:{n:08}", HEADER, data, delay_ms=0) for n in range(count)]
    for page in pages(new, BATCH):
        enqueue.enqueue(scene.database, page, "raise")


@pytest.mark.parametrize("use", USES)
def test_what_a_statement_reads_is_bounded_after_a_burst(burst: Scene, use: str) -> None:
    prepare, count, pages_of_each = USES[use]
    using = burst.database.using
    with transaction.atomic(using=using):
        work = prepare(burst, count)
        with reading(using) as found:
            work()
        transaction.set_rollback(True, using=using)
    told = f"{use}:\n\n" + "\n\n".join(map(str, found))
    assert found, f"{use}: no statement was seen"
    assert not any(one.whole_tables for one in found), f"A table is read as a whole by the {told}"
    assert sum(one.in_vain for one in found) <= 4 * count, f"Rows are looked at in vain by the {told}"
    most = DEEPER * pages_of_each * count + (PAST_DEAD if use in FROM_THE_LOW_END else 0)
    assert sum(one.pages for one in found) <= most, f"More than {most} pages are read by the {told}"
