"""What each worker asks once a second is found by an index, on databases too whose indexes have no conditions."""

import math
from collections.abc import Callable

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from django_delayq import Send, send_delay_messages
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.alarms import schedule_window
from django_delayq.store.settle import BEGIN, look_at_leases
from django_delayq.support.timestamps import HOUR_MS
from tests.store.support import window_of

MANY = 300
# What is known of the table is else from whatever test had the database before, of rows that are gone.
ANALYZE = {"mysql": "ANALYZE TABLE delayq_ready", "postgresql": "ANALYZE delayq_ready"}


@pytest.fixture
def overdue(broker: DatabaseBackend, database: str) -> DatabaseBackend:
    """A store with a backlog that the broker knows, in which nothing is special."""
    send_delay_messages(Send("k", 1, id=f"{n}", delay="1h") for n in range(MANY))
    ReadyMessage.objects.using(database).update(due_at=5)
    if analyze := ANALYZE.get(connections[database].vendor):
        with connections[database].cursor() as cursor:
            cursor.execute(analyze)
    return broker


def _plans(database: str, ask: Callable[[], object]) -> str:
    with CaptureQueriesContext(connections[database]) as captured:
        ask()
    explain = "EXPLAIN QUERY PLAN" if connections[database].vendor == "sqlite" else "EXPLAIN"
    plans = ""
    with transaction.atomic(using=database), connections[database].cursor() as cursor:
        if connections[database].vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")  # of so few rows it would read all
        for query in captured:
            if query["sql"].startswith("SELECT"):
                cursor.execute(f"{explain} {query['sql']}")
                plans += "\n".join(str(row) for row in cursor.fetchall())
    return plans


def test_a_pass_reads_past_no_backlog(overdue: DatabaseBackend, database: str) -> None:
    plans = _plans(database, lambda: schedule_window(overdue.database, window_of(overdue), HOUR_MS))
    assert "delayq_ready_list" in plans


@pytest.mark.alters_tables  # pages that other tests have filled and emptied would be read too
@pytest.mark.parametrize("database", ["postgres_database"], indirect=True)
def test_a_pass_and_upkeep_read_past_nothing_that_is_overdue_or_far(broker: DatabaseBackend, database: str) -> None:
    send_delay_messages(Send("k", 1, id=f"{n}", delay="2d") for n in range(4_000))
    with connections[database].cursor() as cursor:
        cursor.execute("UPDATE delayq_ready SET due_at = 5 WHERE id % 2 = 0")
        cursor.execute("UPDATE delayq_ready SET at_most_once = true, due_at = due_at + id WHERE id % 2 = 1")
        cursor.execute("VACUUM ANALYZE delayq_ready")
    schedule_window(broker.database, window_of(broker), HOUR_MS)  # the first pass asks whether anything has run
    window_of(broker).set_cursor_back(broker.database.now_ms())
    assert _pages_read(database, lambda: schedule_window(broker.database, window_of(broker), HOUR_MS)) < 5
    without_all = BEGIN._replace(rests_until=math.inf)
    assert _pages_read(database, lambda: look_at_leases(broker.database, without_all)) < 15


@pytest.mark.alters_tables  # as above
@pytest.mark.parametrize("database", ["postgres_database"], indirect=True)
def test_upkeep_reads_as_much_of_a_long_backlog_as_of_a_short_one(broker: DatabaseBackend, database: str) -> None:
    send_delay_messages(Send("k", 1, id=f"{n}", delay="2d") for n in range(6_000))
    read = []
    for overdue in 0, 1_500, 6_000:
        ReadyMessage.objects.using(database).filter(pk__lte=overdue).update(due_at=5)
        with connections[database].cursor() as cursor:
            cursor.execute("VACUUM ANALYZE delayq_ready")
        read.append(_pages_read(database, lambda: look_at_leases(broker.database)))
    none, short, long = read
    assert none < 15
    assert long < 2 * short


def _pages_read(database: str, ask: Callable[[], object]) -> int:
    """Return how many pages of tables and indexes the statements read, on PostgreSQL."""
    with CaptureQueriesContext(connections[database]) as captured:
        ask()
    pages = 0
    with transaction.atomic(using=database), connections[database].cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for query in captured:
            if query["sql"].startswith("SELECT"):
                cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query['sql']}")
                plan = cursor.fetchone()[0][0]["Plan"]
                pages += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return pages


def test_upkeep_reads_past_no_backlog(overdue: DatabaseBackend, database: str) -> None:
    plans = _plans(database, lambda: look_at_leases(overdue.database))
    assert "delayq_ready_suspect" in plans
    assert "delayq_ready_once" in plans
    if connections[database].vendor != "postgresql":  # which sorts them, of so few
        assert "delayq_ready_list" in plans
