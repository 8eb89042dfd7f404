"""The database's clock jumps: who renews loses no lease, nothing is early by it, and nothing is lost."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import pytest

from django_delayq import (
    Message,
    Send,
    cancel_delay_messages,
    get_delay_message,
    reschedule_delay_messages,
    send_delay_message,
    send_delay_messages,
)
from django_delayq.brokers.base import Alarm, Claimed, SettleAction
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import get_alias
from django_delayq.core.message import OnConflict, State
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.database import LEAST_GAP_S
from django_delayq.store.settle import look_at_leases, reclaim, reclaim_lapsed
from django_delayq.worker.options import Options
from django_delayq.worker.worker import Worker
from tests.brokers.rig import settlement
from tests.store.skewed import DatabaseClock
from tests.store.support import LEASE_MS, WANT, claim, clock_of
from tests.worker.rig import PATIENCE_S, make_handler

JUMP_MS = 3 * LEASE_MS


@pytest.fixture
def clock(database: str) -> Iterator[DatabaseClock]:
    """The clock of the database."""
    clock = DatabaseClock(database)
    with clock.in_use():
        yield clock


@pytest.fixture
def other(broker: DatabaseBackend) -> Iterator[DatabaseBackend]:
    """Return the backend of another worker, which has looked at the clock before it jumps."""
    other = _another()
    other.queue.maintain(lease_ms=LEASE_MS)
    yield other
    other.close()


def _another() -> DatabaseBackend:
    alias = get_alias()
    assert alias.store is not None
    return DatabaseBackend(alias, alias.store, RedisBroker(alias))


def _claim_one(broker: DatabaseBackend, id: str, lease_ms: int, *, at_most_once: bool = False) -> Claimed:
    """A message that is sent and claimed."""
    send_delay_messages([Send("k", 1, id=id, at_most_once=at_most_once)])
    while not (claimed := broker.queue.claim(WANT, lease_ms=lease_ms, worker=id).messages):
        broker.queue.wait(1)
    return claimed[0]


def _hold(broker: DatabaseBackend) -> list[Claimed]:
    """Return what a worker has claimed and runs: of three messages one must not start twice."""
    sends = [Send("k", 1, id="a"), Send("k", 1, id="b"), Send("k", 1, id="once", at_most_once=True)]
    send_delay_messages(sends)
    held: list[Claimed] = []
    while len(held) < len(sends):
        held += claim(broker)
    return held


@contextmanager
def _worker(handle: Callable[[Message[Any]], object]) -> Iterator[None]:
    """A worker of another process."""
    broker = _another()
    worker = Worker(get_alias(), broker, {"k": make_handler(handle)}, Options())
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(PATIENCE_S)
        broker.close()


def _until(is_so: Callable[[], bool]) -> None:
    until = monotonic() + PATIENCE_S
    while not is_so():
        assert monotonic() < until, "it did not come to that"
        sleep(0.02)


def _rings_later(broker: DatabaseBackend, pk: str) -> bool:
    """Return whether somebody has put the alarm of a row off."""
    (alarm,) = clock_of(broker).timer.find_alarms("default", "k", [pk])
    return alarm.due_ms is not None and alarm.now_ms is not None and alarm.due_ms > alarm.now_ms + 1_000


def _ring(broker: DatabaseBackend) -> None:
    """Have the alarms of all rows ring."""
    broker.queue.maintain(lease_ms=LEASE_MS)
    pks = ReadyMessage.objects.using(broker.database.using).values_list("pk", flat=True)
    broker.queue.timer.schedule([Alarm("default", "k", str(pk)) for pk in pks])


def test_after_a_jump_ahead_nothing_is_taken_from_who_renews(
    broker: DatabaseBackend, other: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    held = _hold(broker)
    clock.jump(JUMP_MS)
    _ring(broker)
    assert other.queue.claim(WANT, lease_ms=LEASE_MS, worker="other").messages == []
    assert other.queue.maintain(lease_ms=LEASE_MS).buried == []
    assert broker.queue.renew(held, LEASE_MS) == [True] * 3
    assert other.queue.claim(WANT, lease_ms=LEASE_MS, worker="other").messages == []
    assert broker.queue.apply([settlement(one, SettleAction.FINISH) for one in held]) == [True] * 3
    finished = FinishMessage.objects.using(database).values_list("message_id", "crashes")
    assert dict(finished) == {"a": 0, "b": 0, "once": 0}


def test_a_jump_between_hearing_the_time_and_reclaiming_takes_nothing_from_who_renews(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    held = _hold(broker)
    found = look_at_leases(broker.database)
    clock.jump(JUMP_MS)
    assert reclaim_lapsed(broker.database, found).rows == {}
    assert reclaim(broker.database, [int(one.pk) for one in held], found.now_ms).rows == {}
    assert broker.queue.renew(held, LEASE_MS) == [True] * 3
    assert broker.queue.apply([settlement(one, SettleAction.FINISH) for one in held]) == [True] * 3
    finished = FinishMessage.objects.using(database).values_list("message_id", "crashes")
    assert dict(finished) == {"a": 0, "b": 0, "once": 0}


@pytest.mark.parametrize("at_most_once", [False, True])
def test_after_a_jump_ahead_no_move_takes_what_runs(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, at_most_once: bool
) -> None:
    send_delay_message("k", 1, id="a", tag="t", at_most_once=at_most_once)
    (held,) = claim(broker)
    clock.jump(JUMP_MS)
    info = get_delay_message("a")
    assert info is not None
    assert (info.state, info.holder) == (State.RUNNING, "w")
    assert cancel_delay_messages("a") == cancel_delay_messages(tag="t") == 0
    assert reschedule_delay_messages("a", delay="1h") == reschedule_delay_messages(tag="t", delay="1h") == 0
    assert broker.queue.purge(["a"]) == [False]
    modes: list[OnConflict] = ["keep", "replace", "earliest", "latest"]
    for on_conflict in modes:
        for delay in ("0s", "1h"):
            sent = send_delay_message("k", 2, id="a", delay=delay, on_conflict=on_conflict)
            assert (sent.created, sent.running) == (False, True)
    assert broker.queue.apply([settlement(held, SettleAction.FINISH)]) == [True]
    row = FinishMessage.objects.using(database).get()
    assert (row.data, row.outcome, row.crashes) == ("1", "finished", 0)


def test_a_jump_ahead_is_told_and_for_a_lease_nobody_takes_over(
    broker: DatabaseBackend, other: DatabaseBackend, clock: DatabaseClock, caplog: pytest.LogCaptureFixture
) -> None:
    lease_ms = 1_000
    send_delay_messages([Send("k", 1, id="a")])
    while not broker.queue.claim(WANT, lease_ms=lease_ms, worker="dead").messages:
        broker.queue.wait(1)
    clock.jump(JUMP_MS)
    _ring(broker)
    told_at = monotonic()
    while not (taken := other.queue.claim(WANT, lease_ms=lease_ms, worker="other").messages):
        assert monotonic() < told_at + PATIENCE_S
        other.queue.wait(1)
    assert monotonic() - told_at > 0.9 * lease_ms / 1000
    assert [(one.id, one.crashes) for one in taken] == [("a", 1)]
    told = [record for record in caplog.records if "jumped ahead" in record.message]
    assert [record.levelno for record in told] == [logging.WARNING] * 2  # each of the two workers says it once


def test_a_worker_that_starts_after_a_jump_ahead_takes_nothing_from_who_renews(
    broker: DatabaseBackend, clock: DatabaseClock
) -> None:
    held = _hold(broker)
    clock.jump(JUMP_MS)
    _ring(broker)
    started: list[str] = []
    with _worker(lambda message: started.append(message.id)):
        _until(lambda: all(_rings_later(broker, one.pk) for one in held))  # then it has looked at each
        assert broker.queue.renew(held, LEASE_MS) == [True] * 3
        assert broker.queue.apply([settlement(one, SettleAction.FINISH) for one in held]) == [True] * 3
    assert started == []


def test_after_a_step_back_nothing_is_early_or_lost_and_what_waits_comes_later_by_the_step(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    lease_ms, step_ms = 1_000, 1_500
    dead, living = _claim_one(broker, "dead", lease_ms), _claim_one(broker, "living", lease_ms)
    due_ms = send_delay_message("k", 1, id="later", delay=0.3).due_ms
    began_at = monotonic()
    clock.jump(-step_ms)
    taken: dict[str, tuple[int, float]] = {}
    while len(taken) < 2:
        assert monotonic() < began_at + PATIENCE_S
        assert broker.queue.renew([living], lease_ms) == [True]
        broker.queue.maintain(lease_ms=lease_ms)
        found = broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="other")
        taken |= {one.id: (found.now_ms, monotonic() - began_at) for one in found.messages}
        broker.queue.wait(0.1)
    assert due_ms is not None
    assert taken["later"][0] >= due_ms
    assert taken["later"][1] > step_ms / 1000
    assert taken["dead"][1] > step_ms / 1000
    assert broker.queue.apply([settlement(dead, SettleAction.FINISH), settlement(living, SettleAction.FINISH)]) == [
        False,
        True,
    ]
    finished = FinishMessage.objects.using(database).get()
    assert finished.started_at is not None
    assert finished.started_at <= finished.ended_at
    assert [record.levelno for record in caplog.records if "went back by 1" in record.message] == [logging.WARNING]


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_when_nobody_could_ask_the_database_for_longer_than_a_lease_nothing_is_taken_from_who_renews(
    broker: DatabaseBackend, other: DatabaseBackend
) -> None:
    lease_ms = 1_000
    once = _claim_one(broker, "once", lease_ms, at_most_once=True)
    dead, living = _claim_one(broker, "dead", lease_ms), _claim_one(broker, "living", lease_ms)
    sleep(LEAST_GAP_S + 0.1)
    assert other.queue.maintain(lease_ms=lease_ms).buried == []
    assert other.queue.claim(WANT, lease_ms=lease_ms, worker="other").messages == []
    assert broker.queue.renew([once, living], LEASE_MS) == [True] * 2
    began_at = monotonic()
    while not (taken := other.queue.claim(WANT, lease_ms=lease_ms, worker="other").messages):
        assert monotonic() < began_at + PATIENCE_S
        other.queue.maintain(lease_ms=lease_ms)
        other.queue.wait(0.1)
    assert [one.id for one in taken] == [dead.id]


def test_what_a_worker_gave_up_when_it_stopped_is_claimed_by_one_that_has_just_started(
    broker: DatabaseBackend, database: str
) -> None:
    stopped, running = _claim_one(broker, "stopped", LEASE_MS), _claim_one(broker, "running", LEASE_MS)
    broker.queue.apply([settlement(stopped, SettleAction.INTERRUPT)])
    ReadyMessage.objects.using(database).update(lease_until=5)
    started = _another()
    started.database.clock_monitor.start(LEASE_MS)
    claimed = started.queue.claim_all(WANT, lease_ms=LEASE_MS, worker="w").messages
    assert [one.id for one in claimed] == [stopped.id]
    assert broker.queue.renew([running], LEASE_MS) == [True]
    started.close()
