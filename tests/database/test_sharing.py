"""Workers that share one table do not fight for its rows: nothing is claimed in vain, whatever all have read."""

from collections.abc import Callable

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_delayq.brokers.base import ClaimRequest, Header, NewMessage, WorkerInfo
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend, timer

WORKERS = 4
WANTS = [ClaimRequest("q", "k", 10)]
NewBackend = Callable[[str], DatabaseBackend]


class Clock:
    """The clock of the timers, in ms, which stands still until it is moved."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that begins with a shift, as far as the database's says."""
    clock = Clock(1_000_000)
    monkeypatch.setattr(timer, "_now_ms", clock)
    return clock


@pytest.fixture
def workers(database: str, new_backend: NewBackend) -> list[DatabaseBackend]:
    """Workers that know of one another."""
    found = [new_backend(database) for _ in range(WORKERS)]
    for number, each in enumerate(found):
        each.presence.heartbeat(WorkerInfo(f"w{number}", ["q"], ["k"], 0, 0))
    for each in found:
        assert len(each.presence.workers()) == WORKERS
    return found


def timer_of(backend: DatabaseBackend) -> timer.DatabaseTimer:
    assert isinstance(backend.queue.timer, timer.DatabaseTimer)
    return backend.queue.timer


def send(backend: DatabaseBackend, count: int, due_ms: int = 0) -> None:
    header = Header("q", "k")
    backend.queue.enqueue([NewMessage(f"{due_ms}-{n}", header, b"{}", at_ms=due_ms + n) for n in range(count)])


def claim(backend: DatabaseBackend, number: int, count: int = 10) -> list[str]:
    found = backend.queue.claim([ClaimRequest("q", "k", count)], lease_ms=60_000, worker=f"w{number}")
    return [one.id for one in found.messages]


def test_what_falls_due_is_for_the_worker_whose_shift_it_is_and_then_for_the_next(
    workers: list[DatabaseBackend], clock: Clock
) -> None:
    due = 1_005_000
    known = [timer_of(each) for each in workers]
    for number, each in enumerate(known):
        each._name = f"w{number}"
        each.schedule([])
        each._known["q", "k"].add(due)
    wakes = sorted(each._wakes_at_ms(("q", "k")) for each in known)
    assert wakes[0] == due
    shifts = {int(at_ms + known[0]._ahead_ms) // timer.SHIFT_MS for at_ms in wakes}
    assert len(shifts) == WORKERS
    assert wakes[-1] - due <= WORKERS * timer.SHIFT_MS


def test_a_worker_that_shares_with_nobody_wakes_for_everything(
    database: str, new_backend: NewBackend, clock: Clock
) -> None:
    alone = timer_of(new_backend(database))
    alone._known["q", "k"].add(1_005_000)
    assert alone._wakes_at_ms(("q", "k")) == 1_005_000


def test_a_backlog_is_shared_out_and_no_claim_is_in_vain(database: str, workers: list[DatabaseBackend]) -> None:
    send(workers[0], 400)
    ReadyMessage.objects.using(database).update(due_at=5)
    claimed: list[str] = []
    for _ in range(10):
        for number, each in enumerate(workers):
            found = claim(each, number)
            assert len(found) == 10
            claimed += found
    assert len(set(claimed)) == len(claimed) == 400


def test_of_a_backlog_each_batch_is_one_statement(postgres_database: str, new_backend: NewBackend) -> None:
    one, other = new_backend(postgres_database), new_backend(postgres_database)
    send(one, 100)
    ReadyMessage.objects.using(postgres_database).update(due_at=5)
    assert len(claim(one, 0)) == len(claim(other, 1)) == 10
    for number, each in enumerate([one, other]):
        with CaptureQueriesContext(connections[postgres_database]) as captured:
            assert len(claim(each, number)) == 10
        assert len(captured) == 1


def test_all_help_where_a_worker_leaves_what_is_due(database: str, workers: list[DatabaseBackend]) -> None:
    send(workers[0], 1)
    ReadyMessage.objects.using(database).update(due_at=workers[0].database.now_ms() - 1_000)
    wait_ms = []
    for number, each in enumerate(workers):
        of_worker = timer_of(each)
        of_worker._name = f"w{number}"
        of_worker._look_due([("q", "k")])
        (due_ms,) = of_worker._known["q", "k"].times
        wait_ms.append(of_worker._wakes_at_ms(("q", "k")) - due_ms)
    assert sorted(wait_ms) == [0, *[timer.GRACE_MS] * (WORKERS - 1)], "at once in whose shift it is"
