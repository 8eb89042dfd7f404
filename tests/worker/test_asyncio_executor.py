"""The event loop of a worker outlives what handlers do to it, and starts nothing whose lease is lost."""

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from django_delayq import Message
from django_delayq.signals import message_started
from tests.worker.rig import Rig, make_handler


async def leave() -> None:
    sys.exit(3)


async def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    "make_leaver",
    [lambda: asyncio.gather(leave()), lambda: asyncio.wait_for(leave(), 60)],
    ids=["gather", "wait_for"],
)
def test_sys_exit_in_a_task_of_a_handlers_own_fails_its_message_only(
    rig: Rig, caplog: pytest.LogCaptureFixture, make_leaver: Callable[[], Awaitable[object]]
) -> None:
    async def handler(message: Message[Any]) -> None:
        if message.id == "bad":
            await make_leaver()

    worker = rig.start(make_handler(handler))
    rig.send("bad")
    rig.broker.until(lambda: rig.see("bad").failures == 1)
    assert rig.see("bad").error == "SystemExit: 3"
    rig.send("good")  # the same loop
    rig.until_gone("good")
    rig.stop()
    assert rig.ended_well[worker.name]
    assert "raised SystemExit, which ends an event loop; it runs on" in caplog.text


def test_a_handler_that_stops_the_loop_stops_nothing(rig: Rig) -> None:
    async def handler(message: Message[Any]) -> None:
        await stop_the_loop()

    worker = rig.start(make_handler(handler))
    rig.send("a")
    rig.until_gone("a")
    rig.stop()
    assert rig.ended_well[worker.name]


def test_a_handler_whose_lease_is_lost_just_before_its_start_does_not_start(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[str] = []

    async def handler(message: Message[Any]) -> None:
        started.append(message.id)

    worker = rig.start(make_handler(handler))

    def lose(**facts: Any) -> None:
        worker._leases.lose(worker._leases.held())

    message_started.connect(lose)
    try:
        with caplog.at_level(logging.WARNING, "django_delayq"):
            rig.send("a")
            rig.broker.until(lambda: "its lease was lost, and its handler was cancelled" in caplog.text)
            rig.stop()
    finally:
        message_started.disconnect(lose)
    assert started == []
    assert rig.see("a").failures == 0


def test_an_event_loop_whose_thread_cannot_start_is_started_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start
    failed: list[threading.Thread] = []

    def fail_once(thread: threading.Thread) -> None:
        if thread.name == "delayq-event-loop" and not failed:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_once)

    async def handler(message: Message[Any]) -> None: ...

    rig.send("a", "b")
    worker = rig.start(make_handler(handler, concurrency=1))
    rig.until_gone("a", "b")
    rig.stop()
    assert rig.ended_well[worker.name]
    assert "The thread of async handlers can't start (can't start new thread)" in caplog.text
