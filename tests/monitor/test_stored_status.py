"""The figures of a store, against rows that real sends and runs made."""

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db.models import F
from django.utils import timezone
from pytest_django import Settings

from django_delayq import Send, send_delay_message, send_delay_messages
from django_delayq.brokers.base import ExecutorInfo, SettleAction, WorkerInfo
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable
from django_delayq.management.delayq import status as delayq_status
from django_delayq.models import ReadyMessage
from django_delayq.monitor import Drain, Need, status
from django_delayq.store import DatabaseBackend, statistics
from django_delayq.store.statistics import AHEAD_MS, Bounds
from django_delayq.support.timestamps import HOUR_MS
from tests.commands.support import delayq, delayq_json
from tests.figure_rows import write_figures


def send(database: str, *ids: str) -> None:
    """Messages that are ready on return: due times are rounded up."""
    for id in ids:
        send_delay_message("k", 1, id=id)
    ReadyMessage.objects.using(database).filter(message_id__in=ids).update(due_at=F("due_at") - 1)


def test_what_finished_is_told_for_the_hour_and_the_day_as_workers_counted_it(
    broker: DatabaseBackend, database: str
) -> None:
    now_ms = broker.database.now_ms()
    write_figures(database, now_ms - 2 * HOUR_MS, number=2, late_ms=40)
    write_figures(database, now_ms, late_ms=7)
    write_figures(database, now_ms, SettleAction.RETRY, late_ms=7, ran_ms=500)
    seen = status()
    assert seen.last_hour is not None
    assert seen.last_day is not None
    assert seen.last_hour.lateness is not None
    assert (seen.last_hour.finished, seen.last_day.finished) == (1, 3)
    assert 5 < seen.last_hour.lateness.p50 <= seen.last_hour.lateness.p99 <= 10
    of_day = seen.by_pair["default", "k"]
    assert (of_day.finished, of_day.failed, of_day.attempts) == (3, 1, 4)
    assert seen.ever == seen.by_pair


def test_the_command_counts_a_small_part_of_many_messages_and_the_metrics_more(
    broker: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayq_status, "QUICK", Bounds(pending=5, pile=3, least=2))
    at = datetime.now(UTC).replace(minute=30, second=0) + timedelta(hours=2)
    send_delay_messages(Send("k", 1, at=at + timedelta(seconds=i)) for i in range(40))
    seen = delayq_json("status")
    assert (seen["states"]["pending"], seen["capped"]) == (5 + 1 + 2, True)  # then the next one, and the least of each
    assert [(hour["due"], hour["complete"]) for hour in seen["forecast"] if hour["due"]] == [(8, False)]
    assert "8 or more" in delayq("status")
    assert (status().pending, status().capped) == (40, False)


def test_the_forecast_tells_how_long_the_live_workers_take(broker: DatabaseBackend, database: str) -> None:
    write_figures(database, broker.database.now_ms(), number=2, ran_ms=2_000)
    broker.presence.heartbeat(WorkerInfo("w", ["default"], ["k"], 0, 0, executors=[ExecutorInfo(4, {"k": 4})]))
    send(database, "ready")
    at = datetime.now(UTC).replace(minute=30, second=0) + timedelta(hours=2)
    send_delay_messages(Send("k", 1, at=at) for _ in range(40))
    seen = status()
    assert sum(hour.due for hour in seen.forecast) == 40
    assert seen.forecast[0].drain == Drain(500)
    assert [hour.drain for hour in seen.forecast if hour.due] == [Drain(20_000)]
    assert all(hour.complete for hour in seen.forecast)
    assert seen.untimed == ()


def test_the_workers_needed_are_those_for_the_next_quarter_of_an_hour(broker: DatabaseBackend, database: str) -> None:
    write_figures(database, broker.database.now_ms(), ran_ms=400_000)
    broker.presence.heartbeat(WorkerInfo("w", ["default"], ["k"], 0, 0, executors=[ExecutorInfo(4, {"k": 4})]))
    send_delay_messages(Send("k", 1, delay=delay) for delay in ("14m", "16m") for _ in range(18))
    assert status().need == Need(2)


@pytest.mark.alters_tables  # of a table that was large before, a share of the pages is looked at
def test_a_large_backlog_needs_more_workers_than_what_is_counted_of_it(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "FULL", Bounds(due=5, least=2))
    write_figures(database, broker.database.now_ms(), ran_ms=AHEAD_MS)
    broker.presence.heartbeat(WorkerInfo("w", ["default"], ["k"], 0, 0, executors=[ExecutorInfo(4, {"k": 4})]))
    send(database, *map(str, range(20)))
    is_sampled = bool(broker.database.dialect.table_pages)
    seen = status()
    assert seen.need == (Need(5) if is_sampled else Need(2, at_least=True))
    assert (seen.ready, seen.capped) == (5, True)


def test_the_forecast_is_by_the_hours_of_utc_unless_a_zone_is_asked_for(
    broker: DatabaseBackend, settings: Settings
) -> None:
    settings.TIME_ZONE = "Asia/Kathmandu"  # UTC+05:45
    assert {hour.starts_ms % HOUR_MS for hour in status().forecast[1:]} == {0}
    assert {each["starts_ms"] % HOUR_MS for each in delayq_json("status")["forecast"][1:]} == {0}
    zoned = status(zone=timezone.get_current_timezone()).forecast
    assert {hour.starts_ms % HOUR_MS for hour in zoned[1:]} == {HOUR_MS // 4}


def test_a_key_of_which_nothing_has_run_is_named(broker: DatabaseBackend, database: str) -> None:
    write_figures(database, broker.database.now_ms())
    send_delay_message("k", 1, priority=5)  # it has run, but never in this priority
    send_delay_message("new", 1, id="cancelled")
    broker.queue.cancel(["cancelled"])
    send_delay_message("new", 1)
    assert status().untimed == ("new",)
    assert "how long these take is not known, none has run, or only in the last minute: new" in delayq("status")


def test_the_text_tells_the_hours_of_the_forecast_and_small_rates_in_plain_words(
    broker: DatabaseBackend, database: str
) -> None:
    sent = send_delay_message("k", 1, delay="2h")
    assert sent.due_at
    write_figures(database, broker.database.now_ms())
    shown = delayq("status")
    hour = sent.due_at.hour
    assert f"due from {hour:02}:00 to {(hour + 1) % 24:02}:00 UTC: 1" in shown
    assert re.search(r"last day: [0-9]+ finished, under 0\.01/s", shown)


@pytest.mark.parametrize("error", [BrokerUnavailable("nobody there"), BrokerRefused("wrong password")])
def test_with_the_broker_away_the_rows_are_still_counted(
    broker: DatabaseBackend, database: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    send(database, "a")
    monkeypatch.setattr(broker.broker.presence, "workers", fail)
    seen = status()
    assert (seen.broker_away, seen.ready, seen.parked) == (True, 1, ())
    assert str(error) in seen.server.problems[0]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_command_fails_where_somebody_has_to_mend_something_and_not_while_the_broker_is_away(
    broker: DatabaseBackend,
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse() -> None:
        raise BrokerRefused("wrong password")

    def leave() -> None:
        raise BrokerUnavailable("nobody there")

    monkeypatch.setattr(broker.broker.presence, "workers", leave)
    call_command("delayq", "status", *options)
    assert "nobody there" in capsys.readouterr().out
    monkeypatch.setattr(broker.broker.presence, "workers", refuse)
    with pytest.raises(CommandError, match="default: wrong password"):
        call_command("delayq", "status", *options)
    assert "wrong password" in capsys.readouterr().out


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch, broker: DatabaseBackend) -> Iterator[None]:
    """The broker does not answer while the test runs."""
    ends = threading.Event()
    monkeypatch.setattr(broker.broker.presence, "workers", ends.wait)
    yield
    ends.set()


@pytest.mark.usefixtures("hang")
def test_a_broker_that_hangs_is_waited_for_as_long_as_was_said(broker: DatabaseBackend, database: str) -> None:
    send(database, "a")
    seen = status(patience_s=0.05)
    assert (seen.broker_away, seen.ready) == (True, 1)
    assert "no answer within 0.05 s" in seen.server.problems[0]


def test_what_a_live_worker_asks_for_is_not_parked(broker: DatabaseBackend, database: str) -> None:
    send(database, "a")
    assert [each.parked for each in status().waiting] == [True]
    broker.presence.heartbeat(WorkerInfo("w", ["default"], ["k"], 0, 0))
    seen = status()
    assert [each.parked for each in seen.waiting] == [False]
    assert [worker.name for worker in seen.workers] == ["w"]
