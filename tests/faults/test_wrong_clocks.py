"""A producer or a worker whose wall clock is a day off: nothing is early, nothing late. Redis's clock decides."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_delayq import Message, send_delay_message
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import get_alias
from django_delayq.support.timestamps import from_ms
from django_delayq.worker.options import Options
from django_delayq.worker.worker import Worker
from tests.servers import Server
from tests.worker.rig import PATIENCE_S, make_handler

DAY_S = 86_400
DELAY_MS = 300

both_directions = pytest.mark.parametrize("off_s", [-DAY_S, DAY_S], ids=["behind", "ahead"])


@pytest.fixture
def put_clock_off(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Moves the wall clock of this process; the monotonic one goes on."""
    time_s, time_ns = time.time, time.time_ns

    def put_off(off_s: int) -> None:
        monkeypatch.setattr(time, "time", lambda: time_s() + off_s)
        monkeypatch.setattr(time, "time_ns", lambda: time_ns() + off_s * 10**9)

    return put_off


def server_us(server: Server) -> int:
    with server.client() as client:
        seconds, microseconds = client.time()
    return int(seconds) * 1_000_000 + int(microseconds)


@both_directions
@pytest.mark.django_db(transaction=True)
def test_a_delay_counts_by_redis(server: Server, put_clock_off: Callable[[int], None], off_s: int) -> None:
    put_clock_off(off_s)
    before = server_us(server)
    sent = send_delay_message("k", 1, delay=60)
    after = server_us(server)
    assert sent.due_at is not None
    due_us = (sent.due_at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert before + 60_000_000 <= due_us <= after + 60_001_000  # rounded up to the next ms, never down


@both_directions
@pytest.mark.django_db(transaction=True)
def test_an_instant_stays_what_it_is(server: Server, put_clock_off: Callable[[int], None], off_s: int) -> None:
    at = from_ms(server_us(server) // 1000 + 60_000)
    put_clock_off(off_s)
    assert send_delay_message("k", 1, at=at).due_at == at


@both_directions
@pytest.mark.django_db(transaction=True)
def test_a_worker_starts_nothing_before_it_is_due(
    server: Server, put_clock_off: Callable[[int], None], off_s: int
) -> None:
    put_clock_off(off_s)
    started: list[tuple[int, int, float]] = []
    done = threading.Event()

    def note(message: Message[Any]) -> None:
        started.append((server_us(server), message.due_ms, message.lateness.total_seconds()))
        done.set()

    broker = RedisBroker(get_alias())
    worker = Worker(get_alias(), broker, {"k": make_handler(note)}, Options())
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    send_delay_message("k", 1, delay=DELAY_MS / 1000)
    assert done.wait(PATIENCE_S)
    worker.stop()
    thread.join(PATIENCE_S)
    broker.close()
    ((start_us, due_ms, lateness_s),) = started
    assert start_us >= due_ms * 1000
    assert 0 <= lateness_s < DAY_S / 2
