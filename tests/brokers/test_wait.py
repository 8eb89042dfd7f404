"""Sleeping until a claim may find something. Each test would hang, and then fail, without the wake-up it names."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from django_delayq.brokers.base import Alarm, ClaimRequest
from tests.brokers.conftest import ALL, name
from tests.brokers.rig import LEASE_MS, Rig, ids, memory_rig

LONG_S = 60.0  # far longer than a test may take: only a wake-up ends such a wait
HOUR = 3_600_000


@contextmanager
def _waiter(rig: Rig, *keys: str) -> Iterator[Callable[[], None]]:
    """A worker that found nothing and sleeps; gives what waits until it woke by itself."""
    wants = [ClaimRequest("q", key, 10) for key in keys]
    asleep = threading.Event()
    woke = threading.Event()

    def sleep() -> None:
        rig.broker.queue.claim(wants, lease_ms=LEASE_MS, worker="sleeper")
        asleep.set()
        rig.broker.queue.wait(LONG_S)
        woke.set()

    def awake() -> None:
        assert woke.wait(LONG_S / 2), "still asleep"

    thread = threading.Thread(target=sleep, daemon=True)
    rig.broker.open()
    thread.start()
    assert asleep.wait(LONG_S / 2)
    try:
        yield awake
    finally:
        rig.broker.queue.wake()
        thread.join(LONG_S / 2)


def test_a_message_that_is_ready_ends_the_wait(rig: Rig) -> None:
    with _waiter(rig, "k") as awake:
        rig.send("a")
        awake()
    assert ids(rig.claim()) == ["a"]


def test_a_message_nearer_than_the_one_slept_for_ends_the_wait(rig: Rig) -> None:
    rig.send("far", delay_ms=HOUR)
    with _waiter(rig, "other", "k") as awake:
        rig.send("near")
        awake()
    assert ids(rig.claim()) == ["near"]


def test_a_message_moved_nearer_ends_the_wait(rig: Rig) -> None:
    rig.send("a", delay_ms=HOUR)
    with _waiter(rig, "k") as awake:
        rig.broker.queue.reschedule(["a"], at_ms=0)
        awake()


@pytest.mark.parametrize("mode", ["replace", "earliest"])
def test_a_conflict_that_moves_it_nearer_ends_the_wait(rig: Rig, mode: str) -> None:
    rig.send("a", delay_ms=HOUR)
    with _waiter(rig, "k") as awake:
        rig.send("a", on_conflict=mode)  # type: ignore[arg-type]
        awake()


def test_a_rescue_ends_the_wait(rig: Rig) -> None:
    rig.bury("a")
    with _waiter(rig, "k") as awake:
        rig.broker.queue.rescue(["a"])
        awake()


@pytest.mark.parametrize("rig", ALL, ids=name, indirect=True)
def test_an_alarm_ends_the_wait(rig: Rig) -> None:
    with _waiter(rig, "k") as awake:
        rig.timer.schedule([Alarm("q", "k", "1")])
        awake()


@pytest.mark.parametrize("rig", ALL, ids=name, indirect=True)
def test_wake_ends_the_running_wait(rig: Rig) -> None:
    with _waiter(rig, "k") as awake:
        rig.broker.queue.wake()
        awake()


@pytest.mark.parametrize("rig", ALL, ids=name, indirect=True)
def test_wake_ends_the_next_wait(rig: Rig) -> None:
    rig.broker.queue.wake()
    thread = threading.Thread(target=rig.broker.queue.wait, args=(LONG_S,), daemon=True)
    thread.start()
    thread.join(LONG_S / 2)
    assert not thread.is_alive()


@pytest.mark.parametrize("rig", ALL, ids=name, indirect=True)
def test_close_ends_the_wait_and_the_broker_can_be_used_again(rig: Rig) -> None:
    with _waiter(rig, "k") as awake:
        rig.broker.close()
        awake()
    if rig.carries_messages:
        rig.send("a")
        assert ids(rig.claim()) == ["a"]
    else:
        rig.timer.schedule([Alarm("q", "k", "1")])
        rig.advance(1)
        claims = rig.broker.queue.claim([ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w")
        assert [alarm.pk for alarm in claims.alarms] == ["1"]


def test_what_was_left_for_want_of_a_slot_does_not_end_the_wait() -> None:
    rig = memory_rig()  # Redis calls other workers then, once a second, and hears that too
    rig.send("once", at_most_once=True)
    rig.broker.queue.claim([ClaimRequest("q", "k", 9, idle_slots=0)], lease_ms=LEASE_MS, worker="w")
    started = time.monotonic()
    rig.broker.queue.wait(0.01)
    assert time.monotonic() - started >= 0.01


@pytest.mark.parametrize("rig", ALL, ids=name, indirect=True)
def test_a_wait_ends_by_itself(rig: Rig) -> None:
    rig.claim()
    rig.broker.queue.wait(0.001)
    rig.broker.queue.wait(0)
