"""Handlers whose messages somebody has asked to cancel: each kind is stopped, or told, and none runs again."""

import asyncio
import logging
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq import Bury, Cancelled, Message, Retry, Snooze
from django_delayq.brokers.base import CancelRequest, Claimed, Header, SettleAction
from django_delayq.core.message import State
from django_delayq.signals import message_cancelled
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.executors.threads import ThreadRunner
from django_delayq.worker.leases import Lease
from tests.worker.rig import PATIENCE_S, Rig, make_handler

SOON_MS = 600
"""A lease that is renewed often."""


@pytest.fixture
def soon() -> Iterator[Rig]:
    rig = Rig(lease_ms=SOON_MS)
    yield rig
    rig.stop()


def _ask(rig: Rig, id: str, by: str = "alice") -> None:
    assert rig.broker.queue.cancel([id], by) == [True]


def _total(rig: Rig, name: str) -> int:
    return rig.broker.queue.counts().totals[name]


def _wait_until_cancelled(message: Message[Any]) -> None:
    for _ in range(int(PATIENCE_S * 100)):
        if message.cancelled:
            return
        threading.Event().wait(0.01)
    raise AssertionError("it is never told")


def test_a_thread_is_told_and_what_it_raises_then_is_no_failure(soon: Rig, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[bool] = []

    def handler(message: Message[Any]) -> None:
        seen.append(message.cancelled)
        message.ensure_not_cancelled()
        _ask(soon, "a")
        _wait_until_cancelled(message)
        message.ensure_not_cancelled()

    with caplog.at_level(logging.INFO, "django_delayq"):
        soon.start(make_handler(handler))
        soon.send("a")
        soon.until_gone("a")
        soon.stop()
    assert seen == [False]
    assert (_total(soon, "cancelled"), _total(soon, "retried"), _total(soon, "buried")) == (1, 0, 0)
    assert "Message 'a' (k) cancelled while it ran, by alice" in caplog.text


def test_a_thread_that_returns_has_finished(soon: Rig) -> None:
    def handler(message: Message[Any]) -> None:
        _ask(soon, "a")
        _wait_until_cancelled(message)

    soon.start(make_handler(handler))
    soon.send("a")
    soon.until_gone("a")
    soon.stop()
    assert (_total(soon, "finished"), _total(soon, "cancelled")) == (1, 0)


@pytest.mark.parametrize("error", [Retry("1h"), Snooze("1h"), Bury("no"), ValueError("no")], ids=repr)
def test_what_ends_before_its_worker_knows_is_cancelled_all_the_same(
    rig: Rig, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(message: Message[Any]) -> None:
        _ask(rig, "a")
        assert not message.cancelled  # no renewal before 5 s
        raise error

    with caplog.at_level(logging.INFO, "django_delayq"):
        rig.start(make_handler(handler))
        rig.send("a")
        rig.until_gone("a")
        rig.stop()
    assert (_total(rig, "cancelled"), _total(rig, "retried"), _total(rig, "buried")) == (1, 0, 0)
    assert "is not written; it was cancelled while it ran, by alice" in caplog.text


def test_an_async_handler_is_cancelled(soon: Rig) -> None:
    ends: list[str] = []
    heard: list[dict[str, Any]] = []

    async def handler(message: Message[Any]) -> None:
        _ask(soon, "a")
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            ends.append(f"cancelled {message.cancelled}")
            raise

    def hear(sender: object, **facts: Any) -> None:
        heard.append(facts)

    message_cancelled.connect(hear)
    try:
        soon.start(make_handler(handler))
        soon.send("a")
        soon.until_gone("a")
        soon.stop()
    finally:
        message_cancelled.disconnect(hear)
    assert ends == ["cancelled True"]
    assert _total(soon, "cancelled") == 1
    assert [(one["id"], one["error"]) for one in heard] == [("a", "cancelled while it ran, by alice")]


def test_an_async_handler_that_returns_all_the_same_has_finished(soon: Rig) -> None:
    async def handler(message: Message[Any]) -> None:
        _ask(soon, "a")
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            return

    soon.start(make_handler(handler))
    soon.send("a")
    soon.until_gone("a")
    soon.stop()
    assert (_total(soon, "finished"), _total(soon, "cancelled")) == (1, 0)


def test_an_async_batch_is_stopped_once_all_of_its_messages_are_to_be_cancelled(soon: Rig) -> None:
    seen: list[bool] = []

    async def handler(messages: list[Message[Any]]) -> None:
        _ask(soon, "a")
        while not messages[0].cancelled:
            await asyncio.sleep(0)
        seen.append(messages[1].cancelled)
        _ask(soon, "b")
        await asyncio.sleep(PATIENCE_S)

    soon.send("a", "b")
    soon.start(make_handler(handler, batch=2, wait_ms=600_000))
    soon.until_gone("a", "b")
    soon.stop()
    assert seen == [False]
    assert (_total(soon, "finished"), _total(soon, "cancelled")) == (0, 2)


def test_other_messages_of_the_worker_go_on(soon: Rig) -> None:
    go_on = asyncio.Event()

    async def handler(message: Message[Any]) -> None:
        if message.id == "a":
            _ask(soon, "a")
            try:
                await asyncio.sleep(PATIENCE_S)
            finally:
                go_on.set()
        else:
            await asyncio.wait_for(go_on.wait(), PATIENCE_S)

    soon.start(make_handler(handler))
    soon.send("a", "b")
    soon.until_gone("a", "b")
    soon.stop()
    assert (_total(soon, "finished"), _total(soon, "cancelled")) == (1, 1)


def test_what_waits_in_the_worker_never_starts() -> None:
    def handler(message: Message[Any]) -> None:
        raise AssertionError("it starts")

    claimed = Claimed("a", 1, 0, Header("default", "k"), b"null")
    lease = Lease(claimed, make_handler(handler), 0.0, math.inf, 0.0, cancel_request=CancelRequest("", 1))
    transition = ThreadRunner("default", AttemptEvents("w")).run(lease)
    assert transition is not None
    assert (transition.action, transition.error) == (SettleAction.CANCEL, "cancelled while it ran")


def test_progress_shows_with_the_next_renewal(soon: Rig) -> None:
    let_go = threading.Event()

    def handler(message: Message[Any]) -> None:
        message.progress(0.1)
        message.progress(0.4, "12 of 30")
        let_go.wait(PATIENCE_S)

    soon.start(make_handler(handler))
    soon.send("a")
    soon.broker.until(lambda: soon.see("a").progress == "0.4 12 of 30")
    let_go.set()
    soon.until_gone("a")


def test_the_end_of_the_worker_leaves_no_request_behind(soon: Rig) -> None:
    """A thread that takes no notice is interrupted, and its message is cancelled rather than run again."""
    runs = threading.Event()
    let_go = threading.Event()

    def handler(message: Message[Any]) -> None:
        runs.set()
        let_go.wait(PATIENCE_S)

    worker = soon.start(make_handler(handler), shutdown_timeout=0)
    soon.send("a")
    assert runs.wait(PATIENCE_S)
    _ask(soon, "a")
    worker.stop()
    soon.join()
    soon.broker.advance(SOON_MS + 2_000)
    soon.broker.queue.maintain(lease_ms=SOON_MS)
    let_go.set()
    assert soon.broker.queue.get("a") is None
    assert _total(soon, "cancelled") == 1


def test_cancelled_is_an_error_like_any_other_where_nobody_asked(rig: Rig) -> None:
    def handler(message: Message[Any]) -> None:
        raise Cancelled("of its own")

    rig.start(make_handler(handler, max_attempts=1))
    rig.send("a")
    assert rig.until_state("a", State.FAILED).error.startswith("Cancelled")
    rig.stop()
