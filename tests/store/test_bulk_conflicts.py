"""Bulk sends of ids that are there: few statements for many, and rows locked in one order, so that none deadlocks."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from django_delayq import Send, reschedule_delay_messages, send_delay_messages
from django_delayq.core.message import OnConflict
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.worker.rig import PATIENCE_S

MANY = 50
MOST_STATEMENTS = {"postgresql": 6, "sqlite": 5, "mysql": 12}
"""Of one batch, BEGIN and COMMIT included: to insert, to change, to look, and for a replacement to look for tags.

Each is up to three where none gives rows back.
"""


@pytest.mark.parametrize("on_conflict", ["keep", "replace", "earliest", "latest"])
def test_many_conflicts_are_few_statements(broker: DatabaseBackend, database: str, on_conflict: OnConflict) -> None:
    send_delay_messages(Send("k", 1, id=f"{n}", delay="2h") for n in range(MANY))
    sends = [Send("k", 2, id=f"{n}", delay="1h", on_conflict=on_conflict) for n in range(MANY)]
    with CaptureQueriesContext(connections[database]) as captured:
        assert send_delay_messages(sends).created == 0
    assert len(captured) <= MOST_STATEMENTS[connections[database].vendor], captured.captured_queries
    changed = {"replace": (MANY, MANY), "earliest": (0, MANY)}.get(on_conflict, (0, 0))
    rows = list(ReadyMessage.objects.using(database))
    sooner = [row for row in rows if (row.due_at - row.sent_at).total_seconds() < 5000]
    assert (sum(row.data == "2" for row in rows), len(sooner)) == changed


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
@pytest.mark.parametrize("second", ["replace", "reschedule"])
def test_two_in_opposite_orders_wait_for_each_other_and_for_nothing_else(
    broker: DatabaseBackend, database: str, second: str
) -> None:
    send_delay_messages(Send("k", 1, id=id, delay="2h") for id in "ab")

    def replace(*ids: str) -> None:
        with transaction.atomic(using=database):
            send_delay_messages(Send("k", 2, id=id, delay="1h", on_conflict="replace") for id in ids)
        connections.close_all()

    def reschedule(*ids: str) -> None:
        with transaction.atomic(using=database):
            assert reschedule_delay_messages(*ids, delay="1h") == len(ids)
        connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        with locked(database, "b"):  # who is through with a waits for it there, who begins with b does too
            both: list[Future[None]] = [pool.submit(replace, "b", "a")]
            wait_for_waiting(database, 1)
            both.append(pool.submit(replace if second == "replace" else reschedule, "a", "b"))
            wait_for_waiting(database, 2)
        for each in both:
            each.result(PATIENCE_S)
    assert set(ReadyMessage.objects.using(database).values_list("data", flat=True)) == {"2"}


@contextmanager
def locked(database: str, id: str) -> Iterator[None]:
    """The row of `id`, held by this thread's transaction."""
    with transaction.atomic(using=database):
        list(ReadyMessage.objects.using(database).select_for_update().filter(message_id=id))
        yield


def wait_for_waiting(database: str, number: int) -> None:
    """Wait until so many others wait for a lock."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S * 100)):
        with connections[database].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            if cursor.fetchone()[0] == number:
                return
        pause.wait(0.01)
    raise AssertionError(f"never {number} that wait")
