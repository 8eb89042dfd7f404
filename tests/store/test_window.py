"""The window: what is due in the next seconds has an alarm, whatever the broker loses, and no row is written for it."""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from django_delayq import Send, reschedule_delay_messages, send_delay_message, send_delay_messages
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import BATCH, Alarm, SettleAction
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.alarms import WINDOW_MS, schedule_window
from django_delayq.store.polling import LATE_MS, Sweep
from django_delayq.support.timestamps import HOUR_MS
from tests.brokers.rig import settlement
from tests.figure_rows import write_figures
from tests.servers import Server
from tests.store.support import LEASE_MS, WANT, alarms, claim, clock_of, clock_of_sends, window_of


def _pass(broker: DatabaseBackend) -> int:
    """A pass that does not wait for the cursor to lag."""
    window_of(broker).set_cursor_back(broker.database.now_ms())
    return schedule_window(broker.database, window_of(broker))


def _move(broker: DatabaseBackend, ms: int, *ids: str) -> None:
    rows = ReadyMessage.objects.using(broker.database.using).filter(message_id__in=ids)
    rows.update(due_at=F("due_at") + ms)


def _find_overdue(broker: DatabaseBackend) -> None:
    """Do what a worker does within 1.5 s of the due time."""
    assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []
    broker.queue.backlog |= Sweep(broker.database).find(broker.queue.underfilled.requests())


def test_only_what_is_within_the_window_is_scheduled_and_no_row_is_written(
    broker: DatabaseBackend, database: str
) -> None:
    send_delay_message("k", 1, id="near", delay="30s")
    send_delay_message("k", 1, id="far", delay="2h")
    assert alarms(broker) == 0
    assert _pass(broker) == 0
    _move(broker, -25_000, "near")
    with CaptureQueriesContext(connections[database]) as captured:
        assert _pass(broker) == 1
    assert alarms(broker) == 1
    assert [query["sql"].split()[0] for query in captured if "delayq_" in query["sql"]] == ["SELECT"]


def test_each_row_is_read_once(broker: DatabaseBackend) -> None:
    _pass(broker)
    send_delay_messages(Send("k", 1, id=f"{n}", at=timezone.now() + timedelta(minutes=30)) for n in range(1_200))
    send_delay_message("k", 1, id="last", delay="40m")
    cursor_ms = window_of(broker).cursor()
    assert cursor_ms is not None
    assert schedule_window(broker.database, window_of(broker), HOUR_MS) == 1_201
    assert alarms(broker) == 1_201
    assert schedule_window(broker.database, window_of(broker), HOUR_MS) == 0


def test_a_flushed_broker_gets_the_window_again_and_what_is_overdue_is_claimed_from_the_table(
    broker: DatabaseBackend, redis_server: Server
) -> None:
    send_delay_messages(Send("k", 1, id=f"{n}", delay="9s") for n in range(20))
    send_delay_message("k", 1, id="overdue", delay="9s")
    _move(broker, -9_000 - LATE_MS, "overdue")
    with redis_server.client() as client:
        client.flushall()
    assert alarms(broker) == 0
    schedule_window(broker.database, window_of(broker))
    assert alarms(broker) == 20
    _find_overdue(broker)
    assert [one.id for one in claim(broker)] == ["overdue"]


def test_that_alarms_may_be_lost_is_a_warning_only_where_something_has_run(
    broker: DatabaseBackend, database: str, redis_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    send_delay_message("k", 1, delay="1h")

    def told() -> list[int]:
        caplog.clear()
        with redis_server.client() as client:
            client.flushall()
        schedule_window(broker.database, window_of(broker))
        return [record.levelno for record in caplog.records if "has lost its alarms" in record.getMessage()]

    assert told() == [logging.INFO]
    write_figures(database, broker.database.now_ms(), alias="another")
    assert told() == [logging.INFO]
    write_figures(database, broker.database.now_ms())
    assert told() == [logging.WARNING]


def test_a_pass_that_a_flush_falls_into_sets_no_cursor(
    broker: DatabaseBackend, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pass(broker)
    soon = timezone.now() + timedelta(seconds=20)
    send_delay_messages(Send("k", 1, id=f"{n}", at=soon + timedelta(milliseconds=n)) for n in range(1_200))
    advance = window_of(broker).advance_cursor

    def advance_and_lose(alarms: Sequence[Alarm], from_ms: int | None, to_ms: int) -> int | None:
        advance(alarms, from_ms, to_ms)
        monkeypatch.undo()
        with redis_server.client() as client:
            client.flushall()
        return to_ms

    monkeypatch.setattr(window_of(broker), "advance_cursor", advance_and_lose)
    schedule_window(broker.database, window_of(broker), HOUR_MS)
    assert window_of(broker).cursor() is None
    schedule_window(broker.database, window_of(broker), HOUR_MS)
    assert alarms(broker) == 1_200


def test_what_commits_while_a_pass_reads_is_not_passed_over(
    broker: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pass(broker)
    _wait_for_a_lag(broker)
    advance = window_of(broker).advance_cursor

    def commit_first(alarms: Sequence[Alarm], from_ms: int | None, to_ms: int) -> int | None:
        monkeypatch.undo()
        with transaction.atomic(using=broker.database.using):
            send_delay_messages(Send("k", 1, id=f"{n}", delay="9s") for n in range(1_500))
        return advance(alarms, from_ms, to_ms)

    monkeypatch.setattr(window_of(broker), "advance_cursor", commit_first)
    schedule_window(broker.database, window_of(broker))
    assert alarms(broker) == 1_000, "one call takes so many"
    schedule_window(broker.database, window_of(broker))
    assert alarms(broker) == 1_500


def _wait_for_a_lag(broker: DatabaseBackend) -> None:
    """Pretend that the last pass was a while ago."""
    window_of(broker).set_cursor_back(broker.database.now_ms() + 1_000)


def test_two_workers_in_one_pass_schedule_each_row(broker: DatabaseBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    _pass(broker)
    soon = timezone.now() + timedelta(minutes=10)
    send_delay_messages(Send("k", 1, id=f"{n}", at=soon + timedelta(milliseconds=n)) for n in range(2_500))
    advance = window_of(broker).advance_cursor
    pages = 0

    def beside_another(alarms: Sequence[Alarm], from_ms: int | None, to_ms: int) -> int | None:
        nonlocal pages
        pages += 1
        if pages == 1:
            monkeypatch.undo()
            schedule_window(broker.database, window_of(broker), HOUR_MS)
        return advance(alarms, from_ms, to_ms)

    monkeypatch.setattr(window_of(broker), "advance_cursor", beside_another)
    assert schedule_window(broker.database, window_of(broker), HOUR_MS) <= 1_000, "the other was further"
    assert alarms(broker) == 2_500


def test_a_page_that_ends_among_equals_leaves_the_others_to_the_next_pass_if_this_one_dies(
    broker: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pass(broker)
    soon = timezone.now() + timedelta(minutes=10)
    send_delay_messages(Send("k", 1, id=f"{n}", at=soon) for n in range(1_200))
    advance = window_of(broker).advance_cursor

    def advance_once(alarms: Sequence[Alarm], from_ms: int | None, to_ms: int) -> int | None:
        if len(alarms) < BATCH:
            raise SystemExit
        return advance(alarms, from_ms, to_ms)

    with monkeypatch.context() as patch:
        patch.setattr(window_of(broker), "advance_cursor", advance_once)
        with pytest.raises(SystemExit):
            schedule_window(broker.database, window_of(broker), HOUR_MS)
    assert alarms(broker) == BATCH
    schedule_window(broker.database, window_of(broker), HOUR_MS)
    assert alarms(broker) == 1_200


def test_a_transaction_open_for_longer_than_the_window_is_told_of_at_its_commit(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_000.0]
    clock_of_sends(monkeypatch, lambda: clock[0])
    with transaction.atomic(using=database):
        send_delay_message("k", 1, id="near", delay="25s")
        send_delay_message("k", 1, id="far", delay="1h")
        clock[0] += 20
    assert alarms(broker) == 1


def test_a_transaction_whose_commit_nobody_was_told_of(broker: DatabaseBackend, database: str) -> None:
    with transaction.atomic(using=database):
        send_delay_message("k", 1, id="a", delay="20s")
        _move(broker, -20_000, "a")  # its hook thinks that it is due in 20 s
    schedule_window(broker.database, window_of(broker))
    assert alarms(broker) == 0
    _move(broker, -LATE_MS, "a")
    _find_overdue(broker)
    assert [one.id for one in claim(broker)] == ["a"]


def test_a_row_behind_the_cursor_that_nobody_told_of(broker: DatabaseBackend) -> None:
    _pass(broker)
    send_delay_message("k", 1, id="a", delay="1h")
    _move(broker, -HOUR_MS - LATE_MS, "a")
    assert schedule_window(broker.database, window_of(broker)) == 0
    _find_overdue(broker)
    assert [one.id for one in claim(broker)] == ["a"]


def test_a_reschedule_to_earlier_and_to_later(broker: DatabaseBackend, database: str) -> None:
    _pass(broker)
    send_delay_message("k", 1, id="a", delay="1h")
    send_delay_message("k", 1, id="b", delay="0s")
    reschedule_delay_messages("a", delay="0s")
    reschedule_delay_messages("b", delay="1h")
    assert [one.id for one in claim(broker)] == ["a"]
    assert alarms(broker) == 0, "the next hour's alarms are not held"


def test_a_cursor_behind_its_alarms_does_no_harm(broker: DatabaseBackend) -> None:
    send_delay_message("k", 1, id="a", delay="5s")
    assert alarms(broker) == 1
    for _ in range(2):
        assert _pass(broker) == 1
    assert alarms(broker) == 1


def test_a_database_clock_that_steps_back(broker: DatabaseBackend) -> None:
    ahead_ms = broker.database.now_ms() + 10_000 + WINDOW_MS
    assert window_of(broker).advance_cursor([], None, ahead_ms) == ahead_ms  # as 10 s ago by the clock of now
    send_delay_message("k", 1, id="a", delay="20s")
    _move(broker, -15_000, "a")
    assert schedule_window(broker.database, window_of(broker)) == 1
    assert alarms(broker) == 1


def test_a_retry_into_the_window_and_one_past_it(broker: DatabaseBackend) -> None:
    send_delay_messages([Send("k", 1, id="soon"), Send("k", 1, id="later")])
    held = claim(broker)
    waits = {"soon": 5_000, "later": HOUR_MS}
    broker.queue.apply([settlement(one, SettleAction.RETRY, error="e", delay_ms=waits[one.id]) for one in held])
    assert alarms(broker) == 1
    assert clock_of(broker).timer.maintain(lease_ms=LEASE_MS).next_lease_end_ms is None


@pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
def test_a_retry_into_the_window_while_redis_is_away(
    stored_delayq: dict[str, Any], settings: Settings, start_redis: Callable[..., Server], database: str
) -> None:
    server = start_redis(appendonly="yes", appendfsync="always")  # which keeps the cursor
    settings.DELAYQ = {"default": stored_delayq | {"LOCATION": server.url}}
    broker = get_backend()
    assert isinstance(broker, DatabaseBackend)
    send_delay_message("k", 1, id="a")
    (held,) = claim(broker)
    _pass(broker)
    server.kill()
    assert broker.queue.apply([settlement(held, SettleAction.RETRY, error="e", delay_ms=5_000)]) == [True]
    server.start()
    broker.queue.ask_timer(lease_ms=LEASE_MS)
    assert window_of(broker).cursor() is not None
    _move(broker, -5_000 - LATE_MS, "a")
    broker.queue.backlog |= Sweep(broker.database).find(WANT)
    assert [one.id for one in claim(broker)] == ["a"]


def test_an_alarm_for_a_row_that_runs_gives_it_to_nobody_else(broker: DatabaseBackend) -> None:
    send_delay_message("k", 1, id="a")
    (held,) = claim(broker)
    broker.queue.timer.schedule([Alarm("default", "k", held.pk)])
    assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="other").messages == []
    assert broker.queue.apply([settlement(held, SettleAction.FINISH)]) == [True]


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_a_burst_that_is_too_much_for_one_call_is_claimed_from_the_table_without_a_pause(
    broker: DatabaseBackend, database: str
) -> None:
    with transaction.atomic(using=database):
        send_delay_messages(Send("k", 1, id=f"{n}") for n in range(1_300))
    assert alarms(broker) == 1_000
    ids: set[str] = set()
    for _ in range(14):
        ids |= {one.id for one in claim(broker)} if len(ids) < 1_300 else set()
    assert len(ids) == 1_300
