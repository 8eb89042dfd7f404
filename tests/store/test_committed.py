"""What was committed runs, and nothing else, whoever dies on the way and whatever the broker does."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.db.models import F
from pytest_django import Settings

from django_delayq import send_delay_message
from django_delayq.brokers import get_backend
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.alarms import schedule_window
from django_delayq.store.enqueue import WITHIN_S
from django_delayq.store.polling import LATE_MS, Sweep
from tests.scale import scaled
from tests.servers import Server
from tests.store.support import LEASE_MS, WANT, alarms, claim, clock_of_sends, window_of
from tests.worker.processes import WorkerProcess

KILLED_AFTER_COMMIT = """
import os, signal
import django
django.setup()
from django.db import transaction
from django_delayq import send_delay_message
with transaction.atomic():
    transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))
    send_delay_message("k", 1, id="a")
"""

PATIENCE_S = 240
HOUR_MS = 3_600_000


@pytest.fixture
def env(stored_delayq: dict[str, Any], database_env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """For processes on the store, whose handler writes to `tmp_path / "record"`."""
    return database_env | {
        "DJANGO_SETTINGS_MODULE": "tests.worker.settings",
        "DELAYQ_TEST": json.dumps(stored_delayq | {"DATABASE": "default"}),
        "DELAYQ_TEST_RECORD": str(tmp_path / "record"),
    }


@pytest.fixture
def workers(env: dict[str, str]) -> Iterator[list[WorkerProcess]]:
    """Two worker processes."""
    started = [WorkerProcess(env) for _ in range(2)]
    yield started
    for worker in started:
        worker.close()


def test_of_sends_from_8_processes_that_roll_back_and_die_exactly_the_committed_run(
    broker: DatabaseBackend, database: str, env: dict[str, str], tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    senders = [sys.executable, "-m", "tests.store.senders", str(scaled(400)), "1"]
    subprocess.run(senders, env=os.environ | env, check=True, timeout=PATIENCE_S)
    until = monotonic() + PATIENCE_S
    while ReadyMessage.objects.using(database).exists():
        assert monotonic() < until, [worker.text for worker in workers]
        sleep(0.1)
    assert [worker.stop() for worker in workers] == [0, 0]
    committed = set(Group.objects.using(database).values_list("name", flat=True))
    ran = Counter((tmp_path / "record").read_text().split("\n")[:-1])
    assert set(ran) == committed != set()
    assert set(ran.values()) == {1}
    audit = broker.queue.audit()
    assert (audit.differences, audit.totals["finished"]) == ([], len(committed))


def test_what_a_sender_committed_that_was_killed_before_it_told_the_broker_runs(
    broker: DatabaseBackend, database: str, env: dict[str, str]
) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED_AFTER_COMMIT], env=os.environ | env, timeout=PATIENCE_S)
    assert killed.returncode == -signal.SIGKILL
    assert alarms(broker) == 0
    ReadyMessage.objects.using(database).update(due_at=F("due_at") - LATE_MS)
    assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []
    broker.queue.backlog |= Sweep(broker.database).find(broker.queue.underfilled.requests())
    assert [one.id for one in claim(broker)] == ["a"]


@pytest.fixture
def own_server(start_redis: Callable[..., Server], stored_delayq: dict[str, Any], settings: Settings) -> Server:
    """A clock that may be frozen and killed."""
    server = start_redis(appendonly="yes", appendfsync="always")
    settings.DELAYQ = {"default": stored_delayq | {"LOCATION": server.url}}
    return server


def _broker() -> DatabaseBackend:
    broker = get_backend()
    assert isinstance(broker, DatabaseBackend)
    return broker


def test_what_was_sent_while_the_broker_was_away_runs_once_it_is_back(own_server: Server) -> None:
    send_delay_message("k", 1, id="before", delay="30m")
    own_server.kill()
    send_delay_message("k", 1, id="now")
    send_delay_message("k", 1, id="later", delay="30m")
    own_server.start()
    broker = _broker()
    schedule_window(broker.database, window_of(broker), HOUR_MS)
    assert alarms(broker) == 2
    assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []
    sweep = Sweep(broker.database)
    while not broker.queue.backlog:
        broker.queue.backlog |= sweep.find(broker.queue.underfilled.requests())
    assert [one.id for one in claim(broker)] == ["now"]


def test_a_hung_broker_is_asked_by_one_commit_in_five_seconds_and_for_250_ms(
    own_server: Server, database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = _broker()
    asked: list[float] = []
    passed = 0.0

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def note(*args: Any, within_s: float) -> Any:
            asked.append(within_s)
            return call(*args, within_s=within_s)

        return note

    for name in ("owner", "schedule"):  # the first says whose Redis it is, and the second is not called without it
        monkeypatch.setattr(broker.queue.timer, name, noting(getattr(broker.queue.timer, name)))
    monkeypatch.setattr("django_delayq.store.enqueue.WITHIN_S", WITHIN_S)  # not what the suite gives other tests
    clock_of_sends(monkeypatch, lambda: passed)
    own_server.freeze()
    for _ in range(3):
        with transaction.atomic(using=database):
            send_delay_message("k", 1)
            send_delay_message("k", 1)
    assert asked == [0.25]
    passed = 5.1
    send_delay_message("k", 1)
    assert asked == [0.25, 0.25]
    own_server.thaw()
    passed = 10.3
    send_delay_message("k", 1)
    assert alarms(broker) >= 1
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text[:40] for text in told] == [
        "The broker was not told of 2 message(s);",
        "The broker was not told of 1 message(s);",
    ]
