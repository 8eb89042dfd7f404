"""Rows of figures: what workers did is written once, rolled up without a loss, and pruned."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_delayq.brokers.base import BuriedInfo, Claimed, Header, Transition
from django_delayq.core.errors import StoreUnavailable
from django_delayq.core.figures import COUNTS, MINUTE_MS, Figures
from django_delayq.core.message import State
from django_delayq.core.transitions import SettleAction
from django_delayq.models import FigureRow
from django_delayq.store import DatabaseBackend, backend, figures
from django_delayq.support.timestamps import DAY_MS, HOUR_MS, wall_clock_ms
from django_delayq.worker import figures as writing
from django_delayq.worker.figures import FigureWriter
from django_delayq.worker.leases import Lease
from django_delayq.worker.logs import OutageLog
from tests.servers import Server
from tests.store.support import site_on
from tests.worker.processes import Site
from tests.worker.rig import make_handler

Period = FigureRow.Period
MINUTE = 1_800_000_000_000
NOW = MINUTE + 10 * DAY_MS


@pytest.fixture
def writer(broker: DatabaseBackend) -> FigureWriter:
    """The figures of one worker, written when the test says so."""
    return FigureWriter(broker.database, OutageLog())


def ended(
    at_ms: int, action: SettleAction = SettleAction.FINISH, *, queue: str = "default", key: str = "k", ran_ms: int = 20
) -> tuple[Lease, Transition]:
    """An attempt that ended at `at_ms`, and had started 7 ms late."""
    started_ms = at_ms - ran_ms
    claimed = Claimed("id", 1, started_ms - 7, Header(queue, key), b"null")
    clock_ms = wall_clock_ms() - time.monotonic() * 1000
    lease = Lease(claimed, make_handler(print), 0.0, 0.0, clock_ms)
    return lease, Transition("id", 1, queue, key, action, started_ms=started_ms, ended_ms=at_ms)


def rows(database: str, **of: Any) -> list[tuple[Any, ...]]:
    """Period, epoch ms, queue, key, finished of each row."""
    found = FigureRow.objects.using(database).filter(**of).order_by("period", "at", "queue", "key", "finished")
    return [(row.period, row.at, row.queue, row.key, vars(row)["finished"]) for row in found]


def total(database: str, *periods: str) -> Figures:
    """All rows of these periods added up."""
    found = FigureRow.objects.using(database).filter(period__in=periods)
    return Figures.sum(found.values_list(*COUNTS))


def roll_up_all(broker: DatabaseBackend, now_ms: int) -> None:
    """Roll up as workers do, a page at a time."""
    for _ in range(100):
        if not figures.roll_up(broker.database, now_ms):
            return
    raise AssertionError("There is no end to what is rolled up.")


def test_there_is_a_row_for_each_queue_and_key_and_minute_in_which_something_ended(
    writer: FigureWriter, database: str
) -> None:
    writer.count([ended(MINUTE + MINUTE_MS - 1), ended(MINUTE + MINUTE_MS), ended(MINUTE + MINUTE_MS, key="l")])
    writer.count([ended(MINUTE, SettleAction.RETRY), ended(MINUTE, SettleAction.RELEASE)])
    writer.write()
    assert rows(database) == [
        ("new", MINUTE, "default", "k", 1),
        ("new", MINUTE + MINUTE_MS, "default", "k", 1),
        ("new", MINUTE + MINUTE_MS, "default", "l", 1),
    ]
    first = FigureRow.objects.using(database).get(at__lt=MINUTE + MINUTE_MS)
    assert first.alias == "default"
    counted = {name: getattr(first, name) for name in COUNTS if getattr(first, name)}
    assert counted == {"finished": 1, "failed": 1, "retried": 1, "ran_ms": 40, "ran_3": 2, "late_ms": 14, "late_2": 2}


def test_a_minute_is_written_when_it_is_over_and_what_ended_in_it_later_beside_it(
    writer: FigureWriter, database: str
) -> None:
    writer.count([ended(MINUTE), ended(MINUTE + MINUTE_MS)])
    writer.write(MINUTE + MINUTE_MS)
    assert rows(database) == [("new", MINUTE, "default", "k", 1)]
    writer.count([ended(MINUTE), ended(MINUTE)])  # the broker, or the database, took long to settle
    writer.write(MINUTE + MINUTE_MS)
    assert rows(database) == [("new", MINUTE, "default", "k", 1), ("new", MINUTE, "default", "k", 2)]
    writer.write()
    assert total(database, Period.NEW).finished == 4


def test_what_was_buried_without_a_start_is_counted_too(writer: FigureWriter, database: str) -> None:
    writer.count_buried([BuriedInfo("a", "mail", "k", 0, "expired"), BuriedInfo("b", "", "", 0, "unreadable")])
    writer.write()
    ((*_, queue, key, finished),) = rows(database)
    assert (queue, key, finished, total(database, Period.NEW).buried) == ("mail", "k", 0, 1)


def test_one_insert_writes_a_minute_and_an_idle_worker_says_nothing(writer: FigureWriter, database: str) -> None:
    writer.count([ended(MINUTE, key=f"k{number}") for number in range(20)])
    with CaptureQueriesContext(connections[database]) as captured:
        writer.write()
        writer.write()
    inserts = [query["sql"] for query in captured.captured_queries if "INSERT" in query["sql"].upper()]
    assert len(inserts) == 1
    assert len(rows(database)) == 20


def test_two_workers_of_one_name_are_added_up(broker: DatabaseBackend, database: str) -> None:
    for _ in range(2):
        writer = FigureWriter(broker.database, OutageLog())
        writer.count([ended(MINUTE)])
        writer.write()
    assert total(database, Period.NEW).finished == 2


@contextmanager
def refusing(monkeypatch: pytest.MonkeyPatch, *, after_all: bool = False) -> Iterator[None]:
    """The database is away, or takes the rows and its answer is lost."""
    write = figures.write

    def away(*arguments: Any) -> None:
        if after_all:
            write(*arguments)
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(figures, "write", away)
        yield


@pytest.mark.parametrize("after_all", [False, True])
def test_what_a_database_that_is_away_did_not_take_is_written_later_and_once(
    writer: FigureWriter, database: str, monkeypatch: pytest.MonkeyPatch, after_all: bool
) -> None:
    with refusing(monkeypatch, after_all=after_all):
        writer.count([ended(MINUTE)])
        writer.write()
    writer.count([ended(MINUTE + MINUTE_MS)])
    writer.write()
    assert rows(database) == [
        ("new", MINUTE, "default", "k", 1),
        ("new", MINUTE + MINUTE_MS, "default", "k", 1),
    ]


def test_what_is_kept_for_a_database_that_is_away_is_bounded(
    writer: FigureWriter, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MOST_UNWRITTEN", 2)
    with refusing(monkeypatch):
        for number in range(5):
            writer.count([ended(MINUTE + number * MINUTE_MS)])
            writer.write()
    writer.write()
    assert [at_ms for _, at_ms, *_ in rows(database)] == [MINUTE + 3 * MINUTE_MS, MINUTE + 4 * MINUTE_MS]


def a_day_of_rows(writer: FigureWriter, *keys: str) -> None:
    """A few minutes of each hour of the day before `NOW`."""
    for hour in range(1, 25):
        for minute in (0, 1, 59):
            at_ms = NOW - hour * HOUR_MS + minute * MINUTE_MS
            writer.count([ended(at_ms, SettleAction.FINISH, key=key, ran_ms=hour) for key in keys])
            writer.count([ended(at_ms, SettleAction.RETRY, key=key) for key in keys])
    writer.write()


def test_each_count_is_in_a_new_row_or_once_in_each_other_period(
    broker: DatabaseBackend, writer: FigureWriter, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "PAGE", 50)
    monkeypatch.setitem(figures.KEPT_MS, Period.MINUTE, 30 * DAY_MS)
    a_day_of_rows(writer, "k", "l")
    before = total(database, Period.NEW)
    assert before.finished == before.retried == 144
    roll_up_all(broker, NOW)
    left = total(database, Period.NEW)
    assert left.finished == 2  # of the last minute
    for period in figures.KEPT_MS:
        assert Figures.sum([left, total(database, period)]) == before
    assert [finished for *_, finished in rows(database, period=Period.MINUTE)] == [2] * 71
    assert [finished for *_, finished in rows(database, period=Period.HOUR)] == [3] * 46 + [2] * 2
    assert [finished for *_, finished in rows(database, period=Period.DAY)] == [48, 48, 23, 23]
    assert [finished for *_, finished in rows(database, period=Period.TOTAL)] == [71] * 2
    roll_up_all(broker, NOW + HOUR_MS)
    assert rows(database, period=Period.NEW) == []
    assert all(total(database, period) == before for period in figures.KEPT_MS)


def test_a_minute_is_left_alone_while_a_worker_may_write_it_or_write_it_again(
    broker: DatabaseBackend, writer: FigureWriter, database: str
) -> None:
    writer.count([ended(MINUTE), ended(MINUTE + MINUTE_MS)])
    writer.write()
    assert figures.roll_up(broker.database, MINUTE + 4 * MINUTE_MS - 1) == 0
    assert figures.roll_up(broker.database, MINUTE + 4 * MINUTE_MS) == 1
    assert rows(database, period=Period.NEW) == [("new", MINUTE + MINUTE_MS, "default", "k", 1)]


def test_a_minute_that_comes_late_is_added_to_its_hour(
    broker: DatabaseBackend, writer: FigureWriter, database: str
) -> None:
    for number in range(2):
        writer.count([ended(MINUTE + number * MINUTE_MS)])
        writer.write()
        roll_up_all(broker, MINUTE + HOUR_MS)
    assert rows(database, period=Period.HOUR) == [("hour", MINUTE, "default", "k", 2)]
    assert rows(database, period=Period.TOTAL) == [("total", MINUTE + MINUTE_MS, "default", "k", 2)]


def test_only_so_many_queues_and_keys_have_rows_and_the_rest_is_counted_together(
    broker: DatabaseBackend, writer: FigureWriter, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (writing, figures):
        monkeypatch.setattr(module, "MOST_PAIRS", 3)
    for minute in range(3):  # another worker, and other tenants, each minute
        of_worker = FigureWriter(broker.database, OutageLog())
        for number in range(10):
            of_worker.count([ended(MINUTE + minute * MINUTE_MS, queue=f"tenant {minute} {number}")])
        of_worker.write()
    assert len(rows(database, period=Period.NEW)) == 3 * (3 + 1)
    roll_up_all(broker, MINUTE + HOUR_MS)
    for period in (Period.HOUR, Period.DAY, Period.TOTAL):
        assert len(rows(database, period=period)) == 3 + 1
        assert total(database, period).finished == 30
    assert rows(database, period=Period.TOTAL, queue="") == [("total", MINUTE + 2 * MINUTE_MS, "", "", 27)]


def test_a_queue_and_key_that_was_busy_in_the_last_minute_keeps_its_name(
    writer: FigureWriter, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MOST_PAIRS", 1)
    writer.count([ended(MINUTE, key="busy"), ended(MINUTE, key="other"), ended(MINUTE, key="other")])
    writer.write()
    writer.count([ended(MINUTE + MINUTE_MS, key="other"), ended(MINUTE + MINUTE_MS, key="busy")])
    writer.write()
    writer.write()  # a minute of nothing: then the first one gets the name
    writer.count([ended(MINUTE + 2 * MINUTE_MS, key="other")])
    writer.write()
    assert [(queue, key, finished) for *_, queue, key, finished in rows(database)] == [
        ("", "", 2),
        ("default", "busy", 1),
        ("", "", 1),
        ("default", "busy", 1),
        ("default", "other", 1),
    ]


def test_nothing_is_lost_or_doubled_when_two_roll_up_at_once(
    broker: DatabaseBackend, writer: FigureWriter, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "PAGE", 7)
    a_day_of_rows(writer, "k", "l")
    before = total(database, Period.NEW)

    def roll_up() -> None:
        for _ in range(30):
            with suppress(OperationalError):  # a lock that another holds: a worker tries again later
                figures.roll_up(broker.database, NOW + HOUR_MS)
        connections.close_all()

    threads = [threading.Thread(target=roll_up) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    roll_up_all(broker, NOW + HOUR_MS)
    assert total(database, Period.HOUR) == total(database, Period.DAY) == total(database, Period.TOTAL) == before


def test_one_worker_rolls_up_at_a_time_because_another_would_not_see_its_names(
    broker: DatabaseBackend, writer: FigureWriter, database: str
) -> None:
    if connections[database].vendor == "sqlite":
        pytest.skip("It has one writer.")
    writer.count([ended(MINUTE)])
    writer.write()
    roll_up_all(broker, NOW)
    writer.count([ended(MINUTE, key="l")])
    writer.write()
    rolled_up: list[int] = []

    def roll_up() -> None:
        rolled_up.append(figures.roll_up(broker.database, NOW))
        connections.close_all()

    with transaction.atomic(using=database):
        list(FigureRow.objects.using(database).filter(period=Period.TOTAL).select_for_update())
        other = threading.Thread(target=roll_up)
        other.start()
        other.join()
    roll_up()
    assert rolled_up == [0, 1]


def test_the_rights_that_a_worker_asks_for_let_it_write_and_roll_up(
    broker: DatabaseBackend, writer: FigureWriter, database: str
) -> None:
    if connections[database].vendor != "postgresql":
        pytest.skip("It has roles of its own.")
    writer.count([ended(MINUTE)])
    with connections[database].cursor() as cursor:
        cursor.execute("CREATE ROLE counting")
        cursor.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO counting")
        cursor.execute("SET ROLE counting")
        (refused,) = backend.missing_grants(broker.database)
        grants = [grant for grant in refused.split(": ", 1)[1].strip(".").split("; ") if "delayq_figure" in grant]
        cursor.execute("RESET ROLE")
        for grant in grants:
            cursor.execute(grant)
        cursor.execute("SET ROLE counting")
        try:
            figures.write(broker.database, writer._take(None))
            assert figures.roll_up(broker.database, NOW) == 1
        finally:
            cursor.execute("RESET ROLE")
            cursor.execute("DROP OWNED BY counting")
            cursor.execute("DROP ROLE counting")


def test_what_is_rolled_up_and_then_rolled_back_is_there_as_before(
    broker: DatabaseBackend, writer: FigureWriter, database: str
) -> None:
    a_day_of_rows(writer, "k")
    before = rows(database)
    with transaction.atomic(using=database):
        figures.roll_up(broker.database, NOW)
        transaction.set_rollback(True, using=database)
    assert rows(database) == before


def test_what_is_old_is_pruned_and_a_total_only_where_nothing_was_new_for_a_month(
    broker: DatabaseBackend, writer: FigureWriter, database: str
) -> None:
    def told(at_ms: int, key: str) -> set[tuple[str, str]]:
        writer.count([ended(at_ms, key=key)])
        writer.write()
        roll_up_all(broker, at_ms + 4 * MINUTE_MS)
        return {(period, key) for period, _, _, key, _ in rows(database) if key != "now"}

    each = {(period, key) for period in ("hour", "day", "total") for key in ("old", "new")}
    told(MINUTE, "old")
    assert told(MINUTE, "new") == each | {("minute", "")}
    assert told(MINUTE + DAY_MS, "new") == each | {("minute", "")}
    assert told(MINUTE + 4 * DAY_MS, "now") == each - {("hour", "old"), ("hour", "new")} | {("minute", "")}
    assert told(MINUTE + 30 * DAY_MS + HOUR_MS, "now") == {("day", "new"), ("total", "new"), ("minute", "")}
    assert rows(database, period=Period.TOTAL, key="new")[0][-1] == 2  # a counter that is scraped does not fall


def test_a_worker_rolls_up_by_itself(broker: DatabaseBackend, writer: FigureWriter, database: str) -> None:
    hour_ms = broker.database.now_ms() // HOUR_MS * HOUR_MS
    writer.count([ended(hour_ms - HOUR_MS), ended(hour_ms + HOUR_MS)])
    writer.write()
    assert [(period, at_ms) for period, at_ms, *_ in rows(database)] == [
        ("day", (hour_ms - HOUR_MS) // DAY_MS * DAY_MS),
        ("hour", hour_ms - HOUR_MS),
        ("minute", hour_ms - HOUR_MS),
        ("new", hour_ms + HOUR_MS),
        ("total", hour_ms - HOUR_MS),
    ]


@pytest.fixture
def site(stored_delayq: dict[str, Any], database_env: dict[str, str], redis_server: Server) -> Iterator[Site]:
    """A site on a store, with leases of a second."""
    stored_delayq["OPTIONS"] |= {"lease": "1s"}
    with site_on(stored_delayq, database_env, redis_server) as site:
        yield site


def test_a_worker_writes_its_last_minute_when_it_stops_and_one_that_is_killed_loses_no_more(
    site: Site, database: str
) -> None:
    worker = site.worker()
    site.send("a", "b", "c")
    assert {site.line.next().id for _ in range(3)} == {"a", "b", "c"}
    assert worker.stop() == 0
    assert total(database, Period.NEW, Period.TOTAL).finished == 3
    killed = site.worker()
    site.send("lost")
    assert site.line.next().id == "lost"
    while (info := site.broker.queue.get("lost")) is None or info.state is not State.FINISHED:
        time.sleep(0.01)
    site.send("held", key="hold")
    assert site.line.next().id == "held"
    killed.kill()
    assert total(database, Period.NEW, Period.TOTAL).finished == 3
    other = site.worker()
    site.line.next_of("held").release()
    assert site.line.next().what == "ran"
    assert other.stop() == 0
    assert site.totals()["finished"] == 5
    assert total(database, Period.NEW, Period.TOTAL).finished == 4


def test_the_workers_of_several_processes_each_write_what_they_did(site: Site, database: str) -> None:
    worker = site.worker("--processes", "2")
    ids = {f"{number}" for number in range(10)}
    site.send(*ids)
    assert {site.line.next().id for _ in ids} == ids
    assert worker.stop() == 0
    assert total(database, Period.NEW, Period.TOTAL).finished == 10


def test_an_attempt_that_takes_its_process_with_it_is_counted_as_failed(site: Site, database: str) -> None:
    worker = site.worker("--processes", "1")
    site.send("a", key="hold")
    os.kill(site.line.next().pid, signal.SIGKILL)
    site.line.next().release()  # once more
    assert site.line.next().what == "ran"
    assert worker.stop() == 0
    counted = total(database, Period.NEW, Period.TOTAL)
    assert (counted.failed, counted.retried, counted.finished, counted.attempts) == (1, 1, 1, 2)
