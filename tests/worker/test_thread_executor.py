"""The executor in threads: each buffer that has work gets one, whatever else happens."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest

from django_delayq import BrokerUnavailable, Message
from django_delayq.brokers.base import Claimed, Transition
from django_delayq.conf import Alias
from django_delayq.worker.executors import threads
from django_delayq.worker.executors.threads import ThreadExecutor
from django_delayq.worker.leases import Lease, Leases
from django_delayq.worker.logs import OutageLog
from django_delayq.worker.prefetch import PrefetchBuffer, Run
from django_delayq.worker.settler import Settler
from tests.servers.cluster import until
from tests.worker.rig import PATIENCE_S, Rig, WatchedBroker, make_handler


def nothing(message: Message[Any]) -> None: ...


def make_buffer(key: str, concurrency: int = 1) -> PrefetchBuffer:
    return PrefetchBuffer(make_handler(nothing, key), [("default", key)], concurrency)


def fill(buffer: PrefetchBuffer) -> None:
    buffer.leases.append(Lease(Claimed(buffer.handler.key, 1, 0, None, b""), buffer.handler, 0.0, float("inf"), 0.0))


def fetch_size(executor: ThreadExecutor, buffer: PrefetchBuffer) -> int:
    """Return how many messages a claim asks for it now."""
    sizes = {each.key: each.fetch_size(executor.slots) for each in executor.state().buffers}
    return sizes[buffer.handler.key]


def make_executor(
    rig: Rig, buffers: list[PrefetchBuffer], make_run: Callable[[], AbstractContextManager[Run]], most: int = 32
) -> ThreadExecutor:
    outage_log = OutageLog()
    leases = Leases(rig.broker, 15_000, outage_log)
    settler = Settler(rig.broker, leases, outage_log)
    return ThreadExecutor(buffers, most, make_run, leases, settler, lambda: None)


def until_idle(rig: Rig, executor: ThreadExecutor, count: int = 1) -> None:
    """Wait until as many threads wait to be called."""
    until(lambda: len(executor._idle) >= count)


def test_two_buffers_offered_to_one_idle_thread_get_a_thread_each(rig: Rig, gate: threading.Event) -> None:
    slow, fast = make_buffer("slow"), make_buffer("fast")
    warm, ended = make_buffer("warm"), threading.Event()

    def run(lease: Lease) -> Transition | None:
        if lease.handler is slow.handler:
            gate.wait(PATIENCE_S)
        elif lease.handler is fast.handler:
            ended.set()
        return None

    executor = make_executor(rig, [slow, fast, warm], lambda: nullcontext(run))
    fill(warm)
    executor.offer(warm)
    until_idle(rig, executor)
    with executor._lock:  # both are offered before the thread that was called first wakes
        for buffer in (slow, fast):
            fill(buffer)
            executor.offer(buffer)
    assert ended.wait(PATIENCE_S), "the second buffer waits behind the first"
    gate.set()
    executor.close(PATIENCE_S)


def test_a_thread_that_a_lease_waits_for_is_not_free_at_any_time(rig: Rig, gate: threading.Event) -> None:
    started = threading.Semaphore(0)

    def run(lease: Lease) -> Transition | None:
        started.release()
        gate.wait(PATIENCE_S)
        return None

    buffer = make_buffer("k", concurrency=3)
    executor = make_executor(rig, [buffer], lambda: nullcontext(run))
    assert executor.idle == 32
    with executor._lock:
        for _ in range(3):
            fill(buffer)
        executor.offer(buffer)
        free = [executor.idle]  # one thread was called, and none is in the buffer
    for _ in range(3):
        assert started.acquire(timeout=PATIENCE_S)
        free.append(executor.idle)
    assert max(free) == 29  # fewer for a moment: a thread that has just begun is not yet in the buffer that called it
    assert free[-1] == 29
    gate.set()
    executor.close(PATIENCE_S)


def test_a_thread_on_its_way_has_its_message_and_one_beside_it_is_for_the_next_of_the_buffer(rig: Rig) -> None:
    first, later = make_buffer("first", concurrency=2), make_buffer("later", concurrency=2)
    executor = make_executor(rig, [first, later], lambda: nullcontext(lambda lease: None), most=2)
    with executor._lock:  # the thread that is called gets nowhere
        fill(first)
        executor.offer(first)
        assert (fetch_size(executor, first), fetch_size(executor, later)) == (1, 1)
        fill(first)
        assert (fetch_size(executor, first), fetch_size(executor, later)) == (0, 0)
    executor.close(PATIENCE_S)


def test_a_buffer_that_the_only_thread_would_never_leave_keeps_it_from_no_other(
    rig: Rig, gate: threading.Event
) -> None:
    fast, other = make_buffer("fast"), make_buffer("other")
    ended = threading.Event()

    def run(lease: Lease) -> Transition | None:
        if lease.handler is other.handler:
            ended.set()
        elif not gate.is_set() and not ended.is_set():
            fill(fast)  # its backlog has no end
            if not other.leases and fetch_size(executor, other):
                fill(other)
                executor.offer(other)
        return None

    executor = make_executor(rig, [fast, other], lambda: nullcontext(run), most=1)
    fill(fast)
    executor.offer(fast)
    assert ended.wait(PATIENCE_S), "nothing is claimed for the other buffer"
    executor.close(PATIENCE_S)


def test_a_thread_on_its_way_to_a_fast_buffer_comes_round_to_another(rig: Rig) -> None:
    fast, other = make_buffer("fast"), make_buffer("other")
    fast.note_run(100, 0.1)
    executor = make_executor(rig, [fast, other], lambda: nullcontext(lambda lease: None), most=1)
    with executor._lock:  # the thread that is called gets nowhere
        fill(fast)
        fast.note_claim(saturated=True, more_available=True)
        executor.offer(fast)
        assert fetch_size(executor, other) == 1
    executor.close(PATIENCE_S)


def test_a_thread_that_frees_counts_as_free_when_it_calls_for_a_buffer_that_found_none(rig: Rig) -> None:
    left, other = make_buffer("left"), make_buffer("other")
    wanted: list[int] = []

    def run(lease: Lease) -> Transition | None:
        assert fetch_size(executor, other) == 0  # this thread is the only one
        left.more_available = False  # a claim has found nothing more of its own buffer
        return None

    executor = make_executor(rig, [left, other], lambda: nullcontext(run), most=1)
    executor._wake = lambda: wanted.append(fetch_size(executor, other))
    fill(left)
    executor.offer(left)
    until_idle(rig, executor)
    assert wanted == [1]
    executor.close(PATIENCE_S)


def test_nothing_is_claimed_behind_a_thread_that_stalls(rig: Rig, gate: threading.Event) -> None:
    slow, other = make_buffer("slow"), make_buffer("other")
    started = threading.Event()

    def run(lease: Lease) -> Transition | None:
        started.set()
        gate.wait(PATIENCE_S)
        return None

    slow.note_run(100, 0.1)  # it was fast so far
    slow.note_claim(saturated=True, more_available=True)
    executor = make_executor(rig, [slow, other], lambda: nullcontext(run), most=1)
    fill(slow)
    executor.offer(slow)
    assert started.wait(PATIENCE_S)
    assert fetch_size(executor, other) == 0
    gate.set()
    executor.close(PATIENCE_S)


def test_a_close_waits_for_what_idle_threads_do_at_their_end(rig: Rig) -> None:
    ended = []

    @contextmanager
    def make_run() -> Iterator[Run]:
        yield lambda lease: None
        ended.append(threading.current_thread())  # here connections are closed

    buffers = [make_buffer("a"), make_buffer("b")]
    executor = make_executor(rig, buffers, make_run)
    for buffer in buffers:
        fill(buffer)
        executor.offer(buffer)
    until_idle(rig, executor)
    executor.close(PATIENCE_S)
    assert ended
    assert not executor._threads
    assert not any(thread.is_alive() for thread in ended)


@pytest.fixture
def short_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_S", 0.05)


@pytest.mark.usefixtures("short_idle")
def test_a_thread_that_nobody_needs_ends_and_the_next_message_gets_a_new_one(rig: Rig) -> None:
    ended: list[str] = []

    @contextmanager
    def make_run() -> Iterator[Run]:
        yield lambda lease: None
        ended.append(threading.current_thread().name)  # here connections are closed

    buffer = make_buffer("k")
    executor = make_executor(rig, [buffer], make_run)
    for count in (1, 2):
        fill(buffer)
        executor.offer(buffer)
        until(lambda: len(ended) == count and executor.running == 0)  # noqa: B023
        assert not buffer.leases
    assert ended == ["delayq-slot-1", "delayq-slot-2"]
    executor.close(PATIENCE_S)


@pytest.mark.usefixtures("short_idle")
def test_a_message_that_comes_while_the_only_thread_ends_is_run(rig: Rig, gate: threading.Event) -> None:
    ending, ran = threading.Event(), []

    @contextmanager
    def make_run() -> Iterator[Run]:
        yield lambda lease: ran.append(lease)
        ending.set()
        gate.wait(PATIENCE_S)

    buffer = make_buffer("k")
    executor = make_executor(rig, [buffer], make_run, most=1)
    fill(buffer)
    executor.offer(buffer)
    assert ending.wait(PATIENCE_S)
    fill(buffer)
    executor.offer(buffer)  # its slot is not free yet
    assert len(ran) == 1
    gate.set()
    until(lambda: len(ran) == 2)
    executor.close(PATIENCE_S)


def test_the_thread_that_waits_for_the_shortest_time_is_called(rig: Rig, gate: threading.Event) -> None:
    ran: list[str] = []
    both = threading.Barrier(2)

    def run(lease: Lease) -> Transition | None:
        ran.append(threading.current_thread().name)
        if len(ran) <= 2:
            both.wait(PATIENCE_S)
        return None

    buffer = make_buffer("k", concurrency=2)
    executor = make_executor(rig, [buffer], lambda: nullcontext(run))
    for _ in range(2):
        fill(buffer)
    executor.offer(buffer)
    until_idle(rig, executor, 2)
    for count in (3, 4, 5):
        fill(buffer)
        executor.offer(buffer)
        until(lambda: len(ran) == count and len(executor._idle) == 2)  # noqa: B023
    assert len(set(ran[2:])) == 1, "threads take turns, so that none is idle long enough to end"
    executor.close(PATIENCE_S)


@pytest.mark.parametrize("failing", [1, 2], ids=["the first thread", "a thread that another calls"])
def test_a_thread_that_cannot_start_ends_no_thread_and_no_buffer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: int
) -> None:
    start = threading.Thread.start
    starts = 0

    def start_or_fail(thread: threading.Thread) -> None:
        nonlocal starts
        if thread.name.startswith("delayq-slot"):
            starts += 1
            if starts == failing:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    rig.send("a", "b", "c")
    rig.broker.advance(1)
    worker = rig.start(make_handler(nothing, concurrency=2))
    rig.until_gone("a", "b", "c")
    rig.stop()
    assert rig.ended_well[worker.name]
    assert "A thread can't start (can't start new thread)" in caplog.text


class Unwakable(WatchedBroker):
    """Can't be woken from its sleep."""

    def __init__(self, alias: Alias) -> None:
        super().__init__(alias)
        self.asleep = threading.Event()

    def wait(self, timeout: float) -> bool:
        self.asleep.set()
        return super().wait(timeout)

    def wake(self) -> None:
        if threading.current_thread().name.startswith("delayq-slot"):
            raise BrokerUnavailable("can't be woken")
        super().wake()


def test_a_broker_that_cannot_be_woken_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(broker_class=Unwakable)
    broker = rig.broker
    assert isinstance(broker, Unwakable)

    def handler(message: Message[Any]) -> None:
        broker.asleep.clear()
        assert broker.asleep.wait(PATIENCE_S)

    idle = make_handler(nothing, "idle")  # for its sake the loop sleeps in the broker while the other buffer is full
    worker = rig.start(make_handler(handler, concurrency=1), idle, max_threads=2)
    for id in ("a", "b", "c"):  # more than there are threads
        rig.send(id)
        rig.until_gone(id)
    rig.stop()
    assert rig.ended_well[worker.name]
    assert "can't be woken" in caplog.text


def test_a_lease_that_is_over_is_given_back_and_not_run(rig: Rig) -> None:
    buffer, ran, ended = make_buffer("k"), [], threading.Event()

    def run(lease: Lease) -> Transition | None:
        ran.append(lease)
        if len(ran) == 2:
            ended.set()
        return None

    executor = make_executor(rig, [buffer], lambda: nullcontext(run))
    for _ in range(3):
        fill(buffer)
    first, over, last = buffer.leases
    over.held_until = 0.0
    executor.offer(buffer)
    assert ended.wait(PATIENCE_S)
    assert ran == [first, last]
    assert over.released
    executor.close(PATIENCE_S)
