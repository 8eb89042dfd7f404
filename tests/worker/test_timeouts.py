"""Time-outs: an async handler is cancelled; in a thread a handler is shown as overdue."""

import asyncio
import logging
import math
import threading
from typing import Any

import pytest

from django_delayq import Message
from django_delayq.brokers.base import Claimed
from django_delayq.core.message import State
from django_delayq.worker.executors import asyncio as asyncio_executor
from django_delayq.worker.leases import Lease
from django_delayq.worker.maintenance import warn_overdue
from tests.worker.rig import PATIENCE_S, Rig, make_handler


def test_an_async_handler_over_its_timeout_is_cancelled_and_failed(rig: Rig) -> None:
    cancelled = threading.Event()

    async def handler(message: Message[Any]) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    rig.send("a", timeout_ms=20)
    rig.drain(make_handler(handler))
    assert cancelled.is_set()
    info = rig.see("a")
    assert (info.state, info.failures) == (State.PENDING, 1)
    assert info.error == "HandlerTimeout: It ran for longer than 20ms."


def test_a_timeout_counts_also_when_the_handler_returns_on_being_cancelled(rig: Rig) -> None:
    async def handler(message: Message[Any]) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            return

    rig.send("a")
    rig.drain(make_handler(handler, timeout_ms=20))
    assert rig.see("a").failures == 1


def test_at_most_once_is_buried_by_a_timeout(rig: Rig) -> None:
    async def handler(message: Message[Any]) -> None:
        await asyncio.sleep(PATIENCE_S)

    rig.send("a", at_most_once=True)
    rig.drain(make_handler(handler, timeout_ms=20))
    assert rig.see("a").state is State.FAILED
    assert "in handler\n    await asyncio.sleep(" in rig.see("a").detail  # where it was


def test_a_handler_that_ignores_its_cancellation_loses_its_lease(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(asyncio_executor, "GRACE_S", 0.05)
    lost = threading.Event()

    async def handler(message: Message[Any]) -> None:
        while message.is_held():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        lost.set()

    rig.send("a", timeout_ms=20)
    with caplog.at_level(logging.ERROR, "django_delayq"):
        worker = rig.start(make_handler(handler))
        assert lost.wait(PATIENCE_S)
        rig.stop()
    assert rig.ended_well[worker.name]
    assert "takes no notice of being cancelled" in caplog.text
    assert "overrun" in caplog.text
    assert (rig.see("a").state, rig.see("a").failures) == (State.RUNNING, 0)  # until its lease ends


def test_a_handler_in_a_thread_over_its_timeout_is_overdue_and_runs_on(
    rig: Rig, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    rig.send("a", timeout_ms=1)
    with caplog.at_level(logging.WARNING, "django_delayq"):
        rig.start(make_handler(lambda message: gate.wait(PATIENCE_S)))
        rig.broker.until(lambda: "overdue" in caplog.text)
        upkeeps = rig.broker.upkeeps
        rig.broker.until(lambda: rig.broker.upkeeps > upkeeps)
        gate.set()
        rig.until_gone("a")
    assert caplog.text.count("overdue") == 1
    assert rig.broker.queue.counts().totals["finished"] == 1


def test_only_what_nothing_can_stop_is_told_overdue(caplog: pytest.LogCaptureFixture) -> None:
    handler = make_handler(lambda message: None, timeout_ms=1)
    thread, task, over = (
        Lease(Claimed(id, 1, 0, None, b""), handler, 0.0, math.inf, 0.0, started_at=1.0)
        for id in ("thread", "task", "over")
    )
    task.cancel = lambda: None
    over.ended = True
    warn_overdue([thread, task, over])
    warn_overdue([thread, task, over])
    assert [record.getMessage().split()[1] for record in caplog.records] == ["'thread'"]
