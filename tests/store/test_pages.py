"""What is read page by page, or pair by pair, costs the database as little at the end as at the beginning."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from django_delayq import Send, send_delay_messages
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.alarms import schedule_window
from django_delayq.store.queries import waiting_pairs
from django_delayq.store.settle import BEGIN, look_at_leases
from tests.store.support import window_of

HOUR_MS = 3_600_000
PAGES = 8
NEW_DATABASE = pytest.mark.alters_tables
"""What other tests have removed leaves entries that would be read too, and holes over which new rows are scattered."""


def _send(database: str, number: int, **values: Any) -> None:
    send_delay_messages(Send("k", 1, id=f"{n}", delay="30m") for n in range(number))
    ReadyMessage.objects.using(database).update(**values)


def _work(database: str, ask: Callable[[], object]) -> list[int]:
    """Return how much each SELECT read, in a unit of the database's own."""
    with CaptureQueriesContext(connections[database]) as captured:
        ask()
    statements = [query["sql"] for query in captured if query["sql"].lstrip().startswith(("SELECT", "WITH"))]
    count = {"mysql": _entries_read, "sqlite": _steps_taken, "postgresql": _blocks_read}[connections[database].vendor]
    return [count(database, sql.replace("%", "%%")) for sql in statements]


def _entries_read(database: str, sql: str) -> int:
    """Of tables and of indexes, those too that an index condition leaves out."""
    ask = "SHOW SESSION STATUS WHERE Variable_name LIKE 'Handler_read%%' OR Variable_name = 'Handler_icp_attempts'"
    with connections[database].cursor() as cursor:
        counts = []
        for statement in (ask, sql, ask):
            cursor.execute(statement, [])
            counts.append(sum(int(value) for _, value in cursor.fetchall()) if statement is ask else cursor.fetchall())
    return int(counts[2]) - int(counts[0])


def _steps_taken(database: str, sql: str) -> int:
    """By SQLite's virtual machine, in tens."""
    steps = 0

    def note() -> int:
        nonlocal steps
        steps += 1
        return 0

    with connections[database].cursor() as cursor:
        connections[database].connection.set_progress_handler(note, 10)
        cursor.execute(sql, [])
        cursor.fetchall()
        connections[database].connection.set_progress_handler(None, 0)
    return steps


def _blocks_read(database: str, sql: str) -> int:
    with transaction.atomic(using=database), connections[database].cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", [])
        plan = cursor.fetchone()[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


@NEW_DATABASE
def test_a_pass_over_what_is_due_at_one_time(broker: DatabaseBackend, database: str) -> None:
    _send(database, PAGES * 1_000, due_at=broker.database.now_ms() + 1_000_000)
    broker.queue.maintain(lease_ms=15_000)
    found: list[int | None] = []
    work = _work(database, lambda: found.append(schedule_window(broker.database, window_of(broker), HOUR_MS)))
    assert found == [PAGES * 1_000]
    assert len(work) == 2 + PAGES + 1  # it asks for the time first, and of a new broker whether anything has run
    assert work[-2] <= 1.25 * work[3]


@NEW_DATABASE
def test_upkeep_of_what_must_not_start_twice_and_was_due_at_one_time(broker: DatabaseBackend, database: str) -> None:
    _send(database, PAGES * 1_000, due_at=5, at_most_once=True)
    position, work = BEGIN, []
    for _ in range(PAGES):
        following = look_at_leases(broker.database, position).position
        work.append(sum(_work(database, partial(look_at_leases, broker.database, position))))
        position = following
    assert position.of_all == position.of_at_most_once > BEGIN.of_at_most_once
    found = look_at_leases(broker.database, position)
    assert (found.lapsed, *found.position[:2]) == ([], *BEGIN[:2])
    assert work[-1] <= 1.25 * work[1]


@NEW_DATABASE
def test_which_queues_and_keys_there_are_is_not_asked_of_all_rows_for_each(
    broker: DatabaseBackend, database: str
) -> None:
    send_delay_messages(Send(f"k{n % 30}", 1, id=f"{n}", delay="30m") for n in range(3_000))
    assert len(waiting_pairs(broker.database, 100)) == 30
    (work,) = _work(database, lambda: waiting_pairs(broker.database, 100))
    assert work <= {"mysql": 3_100, "sqlite": 500, "postgresql": 1_000}[connections[database].vendor]
