"""What a worker that has nothing to do asks of PostgreSQL: less than one statement a second."""

from collections.abc import Callable

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_delayq.brokers.base import ClaimRequest, WorkerInfo
from django_delayq.store import DatabaseBackend, queue, timer
from django_delayq.worker.maintenance import HEARTBEAT_EVERY_S

SECONDS = 70
LEASE_MS = 15_000
WANTS = [ClaimRequest("q", "k", 10)]


def test_an_idle_worker_makes_less_than_one_statement_a_second(
    postgres_database: str, new_backend: Callable[[str], DatabaseBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turns of 70 seconds, one each 100 ms, with the clock of its timer and of its maintenance in hand."""
    now = [1_000.0]
    monkeypatch.setattr(timer, "_now_ms", lambda: int(now[0] * 1000))
    monkeypatch.setattr(queue, "monotonic", lambda: now[0])
    monkeypatch.setattr("django_delayq.store.database.monotonic", lambda: now[0])
    worker = new_backend(postgres_database)
    worker.database.clock_monitor.start(LEASE_MS)
    now[0] += 10
    assert isinstance(worker.queue.timer, timer.DatabaseTimer)
    monkeypatch.setattr(worker.queue.timer, "listen", lambda: None)
    worker.queue.timer.note_listening(True)
    worker.presence.heartbeat(WorkerInfo("w", ["q"], ["k"], 0, 0))
    with CaptureQueriesContext(connections[postgres_database]) as captured:
        for tenth in range(SECONDS * 10):
            now[0] += 0.1
            if tenth % 10 == 0:
                worker.queue.maintain(lease_ms=LEASE_MS)
            if tenth % (HEARTBEAT_EVERY_S * 10) == 0:
                worker.presence.heartbeat(WorkerInfo("w", ["q"], ["k"], 0, 0))
                assert [one.name for one in worker.presence.workers()] == ["w"]
            assert worker.queue.claim(WANTS, lease_ms=LEASE_MS, worker="w").messages == []
    assert len(captured) <= 0.96 * SECONDS


def test_who_is_alive_is_read_again_after_a_notice_and_after_a_while(
    postgres_database: str, new_backend: Callable[[str], DatabaseBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = [1_000_000]
    monkeypatch.setattr(timer, "_now_ms", lambda: now_ms[0])
    worker, other = new_backend(postgres_database), new_backend(postgres_database)
    assert isinstance(worker.queue.timer, timer.DatabaseTimer)
    worker.presence.heartbeat(WorkerInfo("w", ["q"], ["k"], 0, 0))
    worker.queue.timer.note_listening(True)

    def names() -> list[str]:
        return [one.name for one in worker.presence.workers()]

    worker.queue.maintain(lease_ms=LEASE_MS)
    assert names() == ["w"]
    other.presence.heartbeat(WorkerInfo("other", ["q"], ["k"], 0, 0))
    assert names() == ["w"], "the notice has not come"
    worker.queue.timer.hear(["workers"])
    assert names() == ["other", "w"]
    worker.queue.maintain(lease_ms=LEASE_MS)
    other.presence.leave("other")
    assert names() == ["other", "w"]
    now_ms[0] += timer.KNOWN_MS
    assert names() == ["w"]
