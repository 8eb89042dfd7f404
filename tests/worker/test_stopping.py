"""How a worker ends: finish what runs, give back what had not started, interrupt what would not end."""

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from django_delayq import Message
from django_delayq.brokers.base import ClaimRequest, SettleAction
from django_delayq.core.message import State
from django_delayq.management.commands.run_delayq import summary
from django_delayq.worker.lifecycle import Runnable, run_until_signalled
from django_delayq.worker.options import served_queues
from tests.worker.rig import PATIENCE_S, Rig, make_handler


@pytest.mark.usefixtures("known_as_fast")
def test_what_runs_is_finished_and_what_waits_is_given_back(rig: Rig, gate: threading.Event) -> None:
    started = threading.Event()
    got: list[str] = []

    def handler(message: Message[Any]) -> None:
        got.append(message.id)
        if message.id == "a-slow":
            started.set()
            gate.wait(PATIENCE_S)

    rig.send(*(f"fast-{n:02}" for n in range(20)))
    worker = rig.start(make_handler(handler), threads=1)
    rig.broker.until(lambda: rig.broker.queue.counts().totals["finished"] == 20)
    rig.send_together("a-slow", "b", "c")
    assert started.wait(PATIENCE_S)
    worker.stop()
    rig.broker.until(lambda: rig.see("b").state is State.READY and rig.see("c").state is State.READY)
    gate.set()
    rig.join()
    assert rig.broker.queue.get("a-slow") is None
    assert rig.ended_well[worker.name]
    assert (rig.see("b").failures, rig.see("b").crashes) == (0, 0)
    assert not {"b", "c"} & set(got)


def test_a_handler_that_does_not_end_in_time_is_interrupted(rig: Rig, gate: threading.Event) -> None:
    started = threading.Event()

    def handler(message: Message[Any]) -> None:
        started.set()
        gate.wait(PATIENCE_S)

    rig.send("a")
    worker = rig.start(make_handler(handler), shutdown_timeout=0.0)
    assert started.wait(PATIENCE_S)
    worker.stop()
    rig.join()
    assert not rig.ended_well[worker.name]
    assert_runs_again_uncounted(rig)


def test_an_interrupted_handler_that_must_not_start_twice_is_buried(rig: Rig, gate: threading.Event) -> None:
    started = threading.Event()

    def handler(message: Message[Any]) -> None:
        started.set()
        gate.wait(PATIENCE_S)

    rig.send("a")
    worker = rig.start(make_handler(handler, at_most_once=True), shutdown_timeout=0.0)
    assert started.wait(PATIENCE_S)
    worker.stop()
    rig.join()
    info = rig.see("a")
    assert (info.state, "interrupted" in info.error) == (State.FAILED, True)


def test_hurry_does_not_wait_for_the_shutdown_timeout(rig: Rig, gate: threading.Event) -> None:
    started = threading.Event()

    def handler(message: Message[Any]) -> None:
        started.set()
        gate.wait(PATIENCE_S)

    rig.send("a")
    worker = rig.start(make_handler(handler), shutdown_timeout=3_600.0)
    assert started.wait(PATIENCE_S)
    worker.stop()
    worker.hurry()
    rig.join()
    assert_runs_again_uncounted(rig)


def test_an_interrupted_async_handler_is_cancelled(rig: Rig) -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def handler(message: Message[Any]) -> None:
        started.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    rig.send("a")
    worker = rig.start(make_handler(handler), shutdown_timeout=0.0)
    assert started.wait(PATIENCE_S)
    worker.stop()
    rig.join()
    assert cancelled.is_set()
    assert rig.ended_well[worker.name]
    assert_runs_again_uncounted(rig)


def assert_runs_again_uncounted(rig: Rig) -> None:
    info = rig.see("a")
    assert info.state is State.RUNNING
    assert info.lease_end_ms is not None
    assert info.lease_end_ms <= rig.broker.queue.counts().now_ms + 1_000
    rig.broker.advance(1_000)
    rig.broker.queue.maintain(lease_ms=15_000)
    info = rig.see("a")
    assert (info.state, info.failures, info.crashes) == (State.READY, 0, 0)


def test_max_messages_runs_exactly_so_many(rig: Rig) -> None:
    got: list[str] = []
    rig.send(*map(str, range(300)))
    worker = rig.start(make_handler(lambda message: got.append(message.id)), max_messages=100)
    rig.join()
    assert len(got) == 100
    assert rig.ended_well[worker.name]
    assert sum(count.ready for count in rig.broker.queue.counts().waiting) == 200


def test_max_messages_counts_over_all_sets(rig: Rig) -> None:
    got: list[str] = []
    rig.send("a", queue="one")
    rig.send("b", queue="two")
    rig.start(make_handler(lambda message: got.append(message.id)), max_messages=1, queues=served_queues("one,two"))
    rig.join()
    assert len(got) == 1


def test_drain_runs_what_becomes_due_meanwhile_and_leaves_what_is_not(rig: Rig) -> None:
    def handler(message: Message[Any]) -> None:
        if message.data == "resend":
            rig.broker.until(lambda: rig.broker.claims >= 3)  # by then it found nothing more, while this ran
            rig.send("child")
            rig.broker.advance(1)

    rig.send("a", data="resend")
    rig.send("later", delay_ms=60_000)
    rig.drain(make_handler(handler))
    assert rig.broker.queue.counts().totals["finished"] == 2
    assert rig.see("later").state is State.PENDING


def test_a_worker_that_stopped_has_no_heartbeat(rig: Rig) -> None:
    worker = rig.start(make_handler(lambda message: None, "k", former_keys=("old",)), queues=served_queues("mail"))
    rig.broker.until(lambda: rig.broker.presence.workers())
    (info,) = rig.broker.presence.workers()
    assert (info.name, info.queues, info.keys) == (worker.name, ["mail"], ["k", "old"])
    rig.stop()
    assert rig.broker.presence.workers() == []


def test_a_drain_that_ends_early_counts_what_is_due_and_what_others_run(rig: Rig) -> None:
    rig.send("elsewhere")
    rig.broker.advance(1)
    assert rig.broker.queue.claim([ClaimRequest("default", "k", 1)], lease_ms=60_000, worker="another").messages
    rig.send(*map(str, range(10)))
    worker = rig.drain(make_handler(lambda message: None), max_messages=3)
    assert summary(rig.broker, worker.counts, worker.served) == (
        "Drained: 3 finished, 0 to retry, 0 snoozed, 0 failed. "
        "Left: 7 due, 0 not due, 0 parked, 0 paused, 1 running elsewhere."
    )


class Done:
    """A worker that has nothing to do."""

    def __init__(self) -> None:
        self.counts: Counter[SettleAction] = Counter()
        self.served: set[tuple[str, str]] = set()

    def run(self) -> bool:
        return True

    def stop(self) -> None:
        """It ends by itself."""

    def hurry(self) -> None:
        """It ends by itself."""


@pytest.mark.usefixtures("many_files")
def test_a_process_with_a_thousand_connections_waits_for_signals_too() -> None:
    ran: list[Runnable] = []

    def run(worker: Runnable) -> bool:
        ran.append(worker)
        return worker.run()

    run_until_signalled(Done, run)
    assert len(ran) == 1
