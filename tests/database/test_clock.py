"""The database's clock, and the timer that goes by it: a jump makes nothing early, and nothing later than a look."""

from collections.abc import Callable, Iterator

import pytest

from django_delayq.brokers.base import ClaimRequest, Header, NewMessage
from django_delayq.store import DatabaseBackend, timer
from tests.store.skewed import DatabaseClock

LEASE_MS = 15_000
JUMP_MS = 10_000
WANTS = [ClaimRequest("q", "k", 10)]


class Clock:
    """The clock of the timer, in ms, which stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the process."""
    clock = Clock()
    monkeypatch.setattr(timer, "_now_ms", clock)
    return clock


@pytest.fixture
def database_clock(database: str) -> Iterator[DatabaseClock]:
    """The clock that decides."""
    clock = DatabaseClock(database)
    with clock.in_use():
        yield clock


@pytest.fixture
def worker(
    database: str, new_backend: Callable[[str], DatabaseBackend], monkeypatch: pytest.MonkeyPatch
) -> DatabaseBackend:
    """A worker that nobody notifies: it looks by itself."""
    backend = new_backend(database)
    monkeypatch.setattr(backend.queue.timer, "listen", lambda: None)
    return backend


@pytest.fixture
def site(database: str, new_backend: Callable[[str], DatabaseBackend]) -> DatabaseBackend:
    """Another process, which sends."""
    return new_backend(database)


def send(site: DatabaseBackend, id: str, delay_ms: int | None = None) -> None:
    """A message that is due after so long, or since long ago."""
    at_ms = 1 if delay_ms is None else None
    site.queue.enqueue([NewMessage(id, Header("q", "k"), b"{}", delay_ms=delay_ms or 0, at_ms=at_ms)])


def claim(worker: DatabaseBackend) -> list[str]:
    return [one.id for one in worker.queue.claim(WANTS, lease_ms=LEASE_MS, worker="w").messages]


def look(clock: Clock) -> None:
    """Let time pass until a worker that is not notified looks again."""
    clock.now_ms += int(timer.POLL_S * 1000)


def test_where_nobody_is_notified_a_send_is_found_by_the_next_look(
    worker: DatabaseBackend, site: DatabaseBackend, clock: Clock
) -> None:
    assert timer.POLL_S < 1
    assert claim(worker) == []
    send(site, "a")
    assert claim(worker) == [], "it looked a moment ago"
    look(clock)
    assert claim(worker) == ["a"]


def test_after_a_jump_back_nothing_is_early_and_it_runs_when_it_is_due(
    worker: DatabaseBackend, site: DatabaseBackend, clock: Clock, database_clock: DatabaseClock
) -> None:
    send(site, "a", delay_ms=1_000)
    assert claim(worker) == []
    database_clock.jump(-JUMP_MS)
    clock.now_ms += 1_100  # due, as far as the worker knows
    assert claim(worker) == []
    look(clock)
    assert claim(worker) == []
    database_clock.jump(JUMP_MS + 1_100)
    look(clock)
    assert claim(worker) == ["a"]


def test_after_a_jump_ahead_what_is_due_is_found_by_the_next_look(
    worker: DatabaseBackend, site: DatabaseBackend, clock: Clock, database_clock: DatabaseClock
) -> None:
    send(site, "a", delay_ms=JUMP_MS)
    assert claim(worker) == []
    database_clock.jump(JUMP_MS + 1)  # due times are rounded up
    look(clock)
    assert claim(worker) == ["a"]


def test_after_a_jump_ahead_nothing_is_taken_from_who_renews(
    worker: DatabaseBackend, site: DatabaseBackend, clock: Clock, database_clock: DatabaseClock
) -> None:
    send(site, "a")
    held = worker.queue.claim(WANTS, lease_ms=LEASE_MS, worker="w").messages
    assert [one.id for one in held] == ["a"]
    site.queue.maintain(lease_ms=LEASE_MS)
    database_clock.jump(2 * LEASE_MS)
    for _ in range(3):
        look(clock)
        site.queue.maintain(lease_ms=LEASE_MS)
        assert claim(site) == []
    assert worker.queue.renew(held, LEASE_MS) == [True]
    look(clock)
    site.queue.maintain(lease_ms=LEASE_MS)
    assert claim(site) == []
