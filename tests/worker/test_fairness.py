"""Bounded claims: nothing waits behind a slow message while a slot is free, and no key starves another."""

import threading
import time
from collections.abc import Sequence
from time import monotonic
from typing import Any

import pytest

from django_delayq import Message
from django_delayq.brokers.base import (
    CancelRequest,
    Claimed,
    ClaimRequest,
    Header,
    NewMessage,
    Transition,
)
from django_delayq.core.limits import Limits
from django_delayq.core.message import State
from django_delayq.worker import dispatcher, maintenance, prefetch, worker
from django_delayq.worker.dispatcher import Dispatcher
from django_delayq.worker.executors.threads import in_thread
from django_delayq.worker.leases import Lease
from django_delayq.worker.options import Options
from django_delayq.worker.prefetch import MAX_PER_SLOT, PrefetchBuffer, buffers_of
from tests.worker.rig import PATIENCE_S, Rig, WatchedBroker, make_handler


def nothing(message: Message[Any]) -> None: ...


def make_buffer(mean_s: float | None = None, *, concurrency: int = 4, at_most_once: bool = False) -> PrefetchBuffer:
    buffer = PrefetchBuffer(make_handler(nothing, at_most_once=at_most_once), [("default", "k")], concurrency)
    buffer.mean_s = mean_s
    return buffer


@pytest.mark.parametrize(
    ("mean_s", "wanted"), [(None, 4), (1.0, 4), (0.020, 4), (0.010, 8), (0.001, 80), (1e-9, 4 * MAX_PER_SLOT)]
)
def test_a_buffer_wants_twenty_milliseconds_of_work_for_each_slot(mean_s: float | None, wanted: int) -> None:
    assert make_buffer(mean_s).state(32).fetch_size(32) == wanted


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        (Limits(max_concurrency=1_000), 100),
        (Limits(max_concurrency=80), 8),
        (Limits(max_concurrency=10), 4),
        (Limits(max_concurrency=1, concurrency_key="account:{account}"), 100),
        (Limits(max_concurrency=1_000, interval_us=1), 4),
    ],
)
def test_under_a_limit_a_buffer_wants_so_few_ahead_that_others_find_permits(limits: Limits, wanted: int) -> None:
    buffer = PrefetchBuffer(make_handler(nothing, limits=limits), [("default", "k")], 4)
    buffer.mean_s = 1e-9
    assert buffer.state(32).fetch_size(32) == wanted


def test_a_buffer_wants_no_more_than_there_are_slots_free() -> None:
    assert make_buffer().state(3).fetch_size(3) == 3
    assert make_buffer().state(0).fetch_size(0) == 0


def test_nothing_is_heaped_up_behind_a_handler_that_stalls() -> None:
    buffer = make_buffer(0.001)
    buffer.active = buffer.concurrency
    buffer.note_claim(saturated=True)
    assert buffer.state(28).fetch_size(28) == 0
    buffer.note_run(10, 0.01)
    assert buffer.state(28).fetch_size(28) == 80


def test_after_what_was_given_back_nothing_is_claimed_for_busy_slots_until_one_gets_on() -> None:
    buffer = make_buffer()
    buffer.active = 1
    buffer.note_run(100, 0.1)
    assert buffer.state(0).fetch_size(4) > 0
    buffer.note_stall()
    assert buffer.state(0).fetch_size(4) == 0
    buffer.note_run(1, 0.001)
    assert buffer.state(0).fetch_size(4) > 0


def test_what_is_given_back_since_no_slot_came_is_not_claimed_again_at_once(rig: Rig) -> None:
    worker = rig.make(make_handler(nothing))
    (buffer,) = worker._executors[0].buffers
    rig.send("a")
    rig.broker.advance(1)  # due times are rounded up
    (claimed,) = rig.broker.queue.claim([ClaimRequest("default", "k", 1)], lease_ms=15_000, worker="w").messages
    buffer.active, now = 1, monotonic()
    buffer.note_run(100, 0.1)
    buffer.leases.append(Lease(claimed, buffer.handler, now - 1, now + 60, 0))
    worker._dispatcher.release_unstarted()
    assert not buffer.leases
    assert buffer.state(0).fetch_size(4) == 0


def test_nothing_is_claimed_for_busy_slots_of_a_slow_handler() -> None:
    buffer = make_buffer(1.0)
    buffer.active = buffer.concurrency
    buffer.note_claim(saturated=True)
    buffer.note_run(1, 1.0)
    assert buffer.state(28).fetch_size(28) == 0


def test_a_slow_message_ends_the_prefetch_of_a_fast_handler() -> None:
    buffer = make_buffer(0.0001)
    buffer.note_run(1, 0.03)
    assert buffer.state(32).fetch_size(32) == 4


def test_at_most_once_is_claimed_one_for_each_free_slot() -> None:
    buffer = make_buffer(0.0001, at_most_once=True)
    assert buffer.state(32).fetch_size(32) == 4
    buffer.active = 3
    assert buffer.state(29).fetch_size(29) == 1


def test_after_what_must_not_start_twice_nothing_is_claimed_ahead_until_a_claim_gives_none() -> None:
    buffer = make_buffer(0.00001)
    buffer.note_claim(saturated=True, has_at_most_once=True)
    assert buffer.state(32).fetch_size(32) == 4
    buffer.note_claim(saturated=True)
    assert buffer.state(32).fetch_size(32) == 4 * MAX_PER_SLOT


def test_what_would_start_at_once_are_the_slots_that_nothing_waits_for() -> None:
    buffer = make_buffer(0.0001)
    assert buffer.state(0).idle_slots(32) == 4
    assert buffer.state(0).idle_slots(3) == 3
    buffer.active = 1
    assert buffer.state(0).idle_slots(32) == 3
    buffer.leases.extend(make_leases(buffer, 2))
    assert buffer.state(0).idle_slots(32) == 1
    buffer.leases.extend(make_leases(buffer, 50))
    assert buffer.state(0).idle_slots(32) == 0


def make_leases(buffer: PrefetchBuffer, count: int) -> list[Lease]:
    return [Lease(Claimed(f"{n}", 1, 0, None, b""), buffer.handler, 0.0, 0.0, 0.0) for n in range(count)]


def test_a_handler_with_two_keys_has_one_buffer_with_one_concurrency() -> None:
    handler = make_handler(nothing, "new", former_keys=("old",), concurrency=2)
    (buffer,) = buffers_of([handler, handler], ["a", "b"], Options())
    assert buffer.subscriptions == [("a", "new"), ("a", "old"), ("b", "new"), ("b", "old")]
    assert buffer.concurrency == 2


def test_a_slow_key_starves_no_other(rig: Rig, gate: threading.Event) -> None:
    rig.send(*(f"slow-{n}" for n in range(20)), key="slow")
    rig.start(make_handler(lambda message: gate.wait(PATIENCE_S), "slow"), make_handler(nothing, "fast"), max_threads=5)
    rig.broker.until(lambda: rig.broker.queue.counts().running >= 4)
    rig.send("a", "b", "c", key="fast")
    rig.until_gone("a", "b", "c")
    assert rig.broker.queue.counts().totals["finished"] == 3


def test_a_stalled_key_holds_no_more_than_its_slots_run(rig: Rig, gate: threading.Event) -> None:
    started = threading.Semaphore(0)

    def handler(message: Message[Any]) -> None:
        started.release()
        gate.wait(PATIENCE_S)

    rig.send(*map(str, range(20)))
    rig.start(make_handler(handler), threads=3)
    for _ in range(3):
        assert started.acquire(timeout=PATIENCE_S)
    rig.send("other", key="unserved")  # a move, to look after
    counts = rig.broker.queue.counts()
    assert counts.running == 3


@pytest.mark.usefixtures("known_as_fast")
def test_what_no_slot_starts_within_a_second_is_given_back(rig: Rig, gate: threading.Event) -> None:
    def handler(message: Message[Any]) -> None:
        if message.id == "a-slow":
            gate.wait(PATIENCE_S)

    rig.send(*(f"fast-{n:03}" for n in range(50)))
    rig.start(make_handler(handler), threads=1)
    rig.broker.until(lambda: rig.broker.queue.counts().totals["finished"] == 50)
    # The handler is known as fast by now, so the others are claimed along with the slow one.
    rig.send_together("a-slow", *(f"later-{n}" for n in range(20)))
    rig.broker.until(lambda: rig.broker.queue.counts().totals["released"] >= 1)
    rig.broker.until(lambda: rig.broker.queue.counts().running == 1)
    assert rig.see("a-slow").state is State.RUNNING
    assert {rig.see(f"later-{n}").failures for n in range(20)} == {0}


@pytest.mark.usefixtures("known_as_fast")
def test_what_must_not_start_twice_is_not_leased_behind_what_runs(
    rig: Rig, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "UNSTARTED_LOOK_S", 3_600)  # nothing but a slot that frees wakes it
    monkeypatch.setattr(maintenance, "EVERY_S", 3_600)

    def handler(message: Message[Any]) -> None:
        if message.id == "a-slow":
            gate.wait(PATIENCE_S)

    rig.send(*(f"fast-{n:03}" for n in range(50)))
    rig.start(make_handler(handler), threads=1)
    rig.broker.until(lambda: rig.broker.queue.counts().totals["finished"] == 50)
    # The handler is known as fast by now: what may start twice would be claimed along with the slow one.
    rig.send_together("a-slow", "b-plain", "c-once", "d-once", once=("c-once", "d-once"))
    rig.until_state("a-slow", State.RUNNING)
    assert [rig.see(id).state for id in ("b-plain", "c-once", "d-once")] == [State.RUNNING, State.READY, State.READY]
    gate.set()
    rig.until_gone("a-slow", "b-plain", "c-once", "d-once")


def test_buffers_that_share_a_slot_keep_one_message_that_must_not_start_twice(
    rig: Rig, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else what is kept and not started would be given back too, a second later.
    monkeypatch.setattr(Dispatcher, "release_unstarted", lambda self, older_than_s=0: None)
    for key in ("one", "two"):
        rig.send(key, key=key, at_most_once=True)
    rig.broker.advance(1)
    rig.start(*(make_handler(lambda message: gate.wait(PATIENCE_S), key) for key in ("one", "two")), max_threads=1)
    rig.broker.until(lambda: rig.broker.queue.counts().totals["released"] == 1)
    assert sorted(rig.see(id).state for id in ("one", "two")) == [State.READY, State.RUNNING]
    gate.set()
    rig.until_gone("one", "two")


class SlowToSettle(WatchedBroker):
    """A broker that is slow to hear how leases end, as one on another host is."""

    def apply(self, settlements: Sequence[Transition]) -> list[bool | CancelRequest]:
        time.sleep(0.02)
        return super().apply(settlements)


@pytest.mark.parametrize("broker_class", [WatchedBroker, SlowToSettle])
def test_a_backlog_of_another_key_takes_not_every_slot_from_what_must_not_start_twice(
    monkeypatch: pytest.MonkeyPatch, broker_class: type[WatchedBroker]
) -> None:
    monkeypatch.setattr(prefetch, "TIME_SLICE_S", 0)  # a handler is slow: each claim is for a slot that is free
    started: list[str] = []
    once = {"once-1", "once-2"}
    rig = Rig(broker_class=broker_class)

    def is_back(id: str) -> bool:
        return id in started or rig.see(id).state is State.READY

    def handler(message: Message[Any]) -> None:
        started.append(message.id)

    def slow_handler(message: Message[Any]) -> None:
        started.append(message.id)
        rig.broker.until(lambda: all(map(is_back, once)))  # slower than it takes to give back what found no slot

    rig.send(*once, key="once", at_most_once=True)
    rig.send(*(f"busy-{n}" for n in range(20)), key="busy")
    rig.drain(make_handler(slow_handler, "busy"), make_handler(handler, "once"), threads=1, max_threads=1)
    assert len(started) == 22
    assert once <= set(started[:6])


def test_a_buffer_that_is_claimed_ahead_for_takes_no_slot_from_what_must_not_start_twice(rig: Rig) -> None:
    rig.send(*(f"warm-{n}" for n in range(50)), key="fast")
    rig.start(make_handler(nothing, "fast"), make_handler(nothing, "once"), max_threads=8)
    rig.broker.until(lambda: rig.broker.queue.counts().totals["finished"] == 50)
    at_ms = rig.broker.queue.counts().now_ms + 50
    fast = [NewMessage(f"fast-{n}", Header("default", "fast"), b"null", at_ms=at_ms) for n in range(300)]
    once = [
        NewMessage(f"once-{n}", Header("default", "once", at_most_once=True), b"null", at_ms=at_ms) for n in range(2)
    ]
    rig.broker.queue.enqueue([*fast, *once])
    rig.broker.until(lambda: rig.broker.queue.counts().totals["finished"] == 352)
    assert rig.broker.queue.counts().totals["released"] == 0


def test_at_most_once_gives_back_what_came_from_a_second_set_without_a_free_slot(rig: Rig) -> None:
    rig.send("a", key="new", at_most_once=True)
    rig.send("b", key="old", at_most_once=True)
    rig.drain(make_handler(nothing, "new", former_keys=("old",), at_most_once=True), threads=1)
    totals = rig.broker.queue.counts().totals
    assert (totals["released"], totals["finished"]) == (1, 2)


def test_what_no_slot_is_free_for_is_not_claimed_and_given_back_again_and_again(
    rig: Rig, gate: threading.Event
) -> None:
    rig.send("a-first", "b-held", *(f"c{n}" for n in range(60)), key="fast")
    held = threading.Event()

    def hold(message: Message[Any]) -> None:
        if message.id == "b-held":
            held.set()
            gate.wait(PATIENCE_S)

    # Its sender didn't know yet that it must not start twice, so the broker gives it without a slot that is free.
    rig.start(make_handler(hold, "fast"), make_handler(nothing, "once", at_most_once=True), max_threads=1)
    assert held.wait(PATIENCE_S)
    rig.send("once", key="once")
    rig.until_state("c0", State.READY)  # what waits for the slot is given back after a second
    gate.set()
    rig.until_gone("once")
    assert rig.broker.queue.counts().totals["released"] < 60 + 40


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_slot_that_frees_wakes_the_loop(rig: Rig, monkeypatch: pytest.MonkeyPatch, is_async: bool) -> None:
    monkeypatch.setattr(dispatcher, "UNSTARTED_LOOK_S", 3_600)  # nothing else wakes it
    monkeypatch.setattr(maintenance, "EVERY_S", 3_600)

    async def async_nothing(message: Message[Any]) -> None: ...

    rig.send("a", "b", "c", "d")
    rig.broker.advance(1)
    rig.start(make_handler(async_nothing if is_async else nothing, at_most_once=True, concurrency=1))
    rig.until_gone("a", "b", "c", "d")


@pytest.mark.parametrize("queue", ["default", "default^5"])
def test_the_slot_of_suspects_takes_the_next_as_soon_as_it_frees(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    monkeypatch.setattr(maintenance, "EVERY_S", 3_600)  # nothing else looks for suspects

    monkeypatch.setattr(worker, "in_sandboxes", lambda name, using, events: in_thread("default", events))
    ids = [f"{n}" for n in range(10)]
    rig.send(*ids, queue=queue)
    rig.broker.advance(1)
    for _ in range(2):
        assert rig.broker.queue.claim([ClaimRequest(queue, "k", 10)], lease_ms=10, worker="dies").messages
        rig.broker.advance(11)
        rig.broker.queue.maintain(lease_ms=10)
    rig.start(make_handler(nothing))
    rig.until_gone(*ids)


def test_one_slot_runs_a_burst_in_order_of_due_time(rig: Rig) -> None:
    got: list[str] = []
    ids = [f"{n:04}" for n in range(1_000)]
    rig.send(*ids)
    rig.drain(make_handler(lambda message: got.append(message.id)), threads=1)
    assert got == ids
