"""The database's clock decides: however far off the broker's, a producer's or a worker's, nothing is early or lost."""

import io
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.core.checks import Tags, run_checks
from django.core.management import call_command
from django.db import connections
from django.db.models import F
from pytest_django import Settings

from django_delayq import Message, send_delay_message
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Pause
from django_delayq.conf import get_alias
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.alarms import schedule_window
from django_delayq.store.polling import LATE_MS, Sweep
from django_delayq.support.timestamps import HOUR_MS
from django_delayq.worker.options import Options
from django_delayq.worker.worker import Worker
from tests.store.skewed import Skew
from tests.store.support import LEASE_MS, WANT, claim, clock_of, window_of
from tests.worker.rig import PATIENCE_S, make_handler

DAY_MS = 86_400_000
MINUTE_MS = 60_000

off_by = pytest.mark.parametrize("skew_ms", [5_000, -DAY_MS, DAY_MS], ids=["5s ahead", "a day behind", "a day ahead"])


@pytest.fixture
def stored_delayq(settings: Settings, database: str) -> dict[str, Any]:
    """DELAYQ["default"] with a store whose broker has a clock that can be put off."""
    alias = {
        "BROKER": "tests.store.skewed.SkewedBroker",
        "DATABASE": database,
        "STORE": {},
        "OPTIONS": {"unknown_keys": "allow"},
    }
    settings.DELAYQ = {"default": alias}
    return alias


@pytest.fixture
def put_off(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Puts the broker's clock off."""
    return lambda ms: monkeypatch.setattr(Skew, "ms", ms)


def _wall_clock_off(monkeypatch: pytest.MonkeyPatch, off_ms: int) -> None:
    time_s, time_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: time_s() + off_ms / 1000)
    monkeypatch.setattr(time, "time_ns", lambda: time_ns() + off_ms * 1_000_000)


def _run(broker: DatabaseBackend, *delays_ms: int) -> dict[str, tuple[int, int]]:
    """Send messages with these delays and run them: when the database says they started, and when they were due."""
    started: dict[str, tuple[int, int]] = {}
    done = threading.Event()

    def note(message: Message[Any]) -> None:
        started[message.id] = broker.database.now_ms(), message.due_ms
        if len(started) == len(delays_ms):
            done.set()

    worker = Worker(get_alias(), broker, {"k": make_handler(note)}, Options())
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    for delay_ms in delays_ms:
        send_delay_message("k", 1, delay=delay_ms / 1000)
    assert done.wait(PATIENCE_S)
    worker.stop()
    thread.join(PATIENCE_S)
    connections.close_all()
    return started


@off_by
def test_a_broker_whose_clock_is_off_makes_nothing_early_and_loses_nothing(
    broker: DatabaseBackend, put_off: Callable[[int], None], skew_ms: int
) -> None:
    put_off(skew_ms)
    for started_ms, due_ms in _run(broker, 0, 300, 2_500).values():
        assert due_ms <= started_ms < due_ms + MINUTE_MS


@pytest.mark.parametrize("off_ms", [-DAY_MS, DAY_MS], ids=["behind", "ahead"])
def test_a_producer_and_a_worker_whose_clocks_are_off_change_nothing(
    broker: DatabaseBackend, monkeypatch: pytest.MonkeyPatch, off_ms: int
) -> None:
    _wall_clock_off(monkeypatch, off_ms)
    before_ms = broker.database.now_ms()
    for started_ms, due_ms in _run(broker, 0, 300).values():
        assert before_ms <= due_ms <= started_ms < due_ms + MINUTE_MS


def test_a_broker_whose_clock_jumps_ahead_gives_nothing_early(
    broker: DatabaseBackend, put_off: Callable[[int], None], database: str
) -> None:
    send_delay_message("k", 1, id="a", delay="10s")
    put_off(DAY_MS)
    assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []
    (alarm,) = clock_of(broker).timer.find_alarms("default", "k", [str(ReadyMessage.objects.using(database).get().pk)])
    assert alarm.due_ms is not None
    now_ms = clock_of(broker).queue.counts().now_ms
    # Put again, for when it is due: each of the two clocks rounds up to a whole ms.
    assert now_ms < alarm.due_ms <= now_ms + 10_000 + 2


def test_what_a_broker_whose_clock_jumps_back_forgets_the_sweep_finds(
    broker: DatabaseBackend, put_off: Callable[[int], None], database: str
) -> None:
    send_delay_message("k", 1, id="a", delay="10m")
    schedule_window(broker.database, window_of(broker), HOUR_MS)
    put_off(-DAY_MS)
    ReadyMessage.objects.using(database).update(due_at=F("due_at") - 10 * MINUTE_MS - LATE_MS - 1)
    assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []
    broker.queue.backlog |= Sweep(broker.database).find(broker.queue.underfilled.requests())
    assert [one.id for one in claim(broker)] == ["a"]


def test_an_audit_tells_of_what_a_broker_whose_clock_jumped_back_would_be_late_with(
    broker: DatabaseBackend, put_off: Callable[[int], None]
) -> None:
    send_delay_message("k", 1, id="a", delay="10m")
    schedule_window(broker.database, window_of(broker), HOUR_MS)
    assert broker.queue.audit().differences == []
    put_off(-DAY_MS)
    assert broker.queue.audit().differences == [
        "message 'a' is due before the cursor, and the broker has no alarm for it in time"
    ]
    assert len(broker.queue.repair()) == 1
    assert broker.queue.audit().differences == []


@off_by
def test_upkeep_tells_the_time_of_the_database_by_which_pauses_end(
    broker: DatabaseBackend, put_off: Callable[[int], None], skew_ms: int
) -> None:
    put_off(skew_ms)
    before_ms = broker.database.now_ms()
    broker.presence.pause(Pause("default", None, "x", before_ms + MINUTE_MS))
    assert before_ms <= broker.queue.maintain(lease_ms=LEASE_MS).now_ms <= broker.database.now_ms()
    assert len(broker.presence.pauses()) == 1


@pytest.mark.parametrize(
    ("skew_ms", "words"), [(DAY_MS + 90 * MINUTE_MS, "1d1h ahead of"), (-DAY_MS - 90 * MINUTE_MS, "1d1h behind")]
)
def test_status_the_worker_and_a_check_tell_of_clocks_that_differ(
    broker: DatabaseBackend, put_off: Callable[[int], None], database: str, skew_ms: int, words: str
) -> None:
    put_off(skew_ms)
    out = io.StringIO()
    call_command("delayq", "status", stdout=out)
    assert f"between the two clocks: the broker's clock is {words} the database's" in out.getvalue()
    warning = f"The broker's clock is {words} the database's, which decides"
    assert f"warning: {warning}" in out.getvalue()
    (told,) = (each for each in broker.report().warnings if "clock" in each)
    assert told.startswith(warning)
    found = run_checks(tags=[Tags.database], include_deployment_checks=True, databases=[database])
    assert [each.msg for each in found if each.id == "delayq.W005"] == [told]


def test_clocks_that_agree_are_no_news(broker: DatabaseBackend, database: str) -> None:
    out = io.StringIO()
    call_command("delayq", "status", stdout=out)
    assert "between the two clocks: the broker's clock agrees with the database's" in out.getvalue()
    assert [each for each in broker.report().warnings if "clock" in each] == []
    found = run_checks(tags=[Tags.database], include_deployment_checks=True, databases=[database])
    assert "delayq.W005" not in [each.id for each in found]


@pytest.mark.usefixtures("gives_up_soon")
def test_a_broker_that_is_away_has_no_clock_to_compare(settings: Settings, database: str) -> None:
    settings.DELAYQ = {"default": {"LOCATION": "unix:///nowhere/redis.sock", "DATABASE": database, "STORE": {}}}
    assert isinstance(get_backend(), DatabaseBackend)
    found = run_checks(tags=[Tags.database], include_deployment_checks=True, databases=[database])
    assert "delayq.W005" not in [each.id for each in found]
