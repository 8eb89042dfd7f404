"""What a worker does with one message after another."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import BrokerUnavailable, Bury, Message, Retry, Snooze
from django_delayq.brokers.base import ClaimRequest
from django_delayq.core.message import State
from django_delayq.support.timestamps import from_ms
from django_delayq.worker.options import served_queues
from tests.worker.rig import PATIENCE_S, Rig, make_handler

ANYTHING = [
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    MemoryError(),
    ValueError("x"),
]


def test_a_handler_gets_the_message_as_it_was_sent(rig: Rig) -> None:
    got: list[Message[Any]] = []
    rig.send("a", data={"n": [1, None]}, tag="t", trace_id="trace")
    rig.drain(make_handler(lambda message: got.append(message)))
    (message,) = got
    assert (message.id, message.key, message.queue, message.data) == ("a", "k", "default", {"n": [1, None]})
    assert (message.tag, message.trace_id, message.attempt) == ("t", "trace", 1)
    assert message.sent_ms <= message.due_ms <= message.started_ms
    assert rig.broker.queue.counts().totals["finished"] == 1


def test_a_message_of_a_former_key_finds_its_handler(rig: Rig) -> None:
    got: list[str] = []
    rig.send("a", key="old")
    rig.drain(make_handler(lambda message: got.append(message.key), "new", former_keys=("old",)))
    assert got == ["old"]


def test_a_message_in_another_queue_than_its_handlers_runs(rig: Rig) -> None:
    got: list[str] = []
    rig.send("a", queue="mail")
    rig.drain(
        make_handler(lambda message: got.append(message.queue)),
        make_handler(lambda message: None, "other", queue="mail"),
    )
    assert got == ["mail"]


def test_only_the_queues_asked_for_are_served(rig: Rig) -> None:
    got: list[str] = []
    rig.send("a")
    rig.send("b", queue="mail")
    rig.drain(make_handler(lambda message: got.append(message.id)), queues=served_queues("mail"))
    assert got == ["b"]


def test_an_unknown_key_stays_ready(rig: Rig) -> None:
    rig.send("a", key="unknown")
    rig.drain(make_handler(lambda message: None))
    assert rig.see("a").state is State.READY


@pytest.mark.parametrize("exception", ANYTHING, ids=lambda exception: type(exception).__name__)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_whatever_a_handler_raises_fails_its_message_only(rig: Rig, exception: BaseException, is_async: bool) -> None:
    def sync_handler(message: Message[Any]) -> None:
        if message.id == "bad":
            raise exception

    async def async_handler(message: Message[Any]) -> None:
        await asyncio.sleep(0)
        sync_handler(message)

    rig.start(make_handler(async_handler if is_async else sync_handler, concurrency=1))
    rig.send("bad")
    rig.broker.until(lambda: rig.see("bad").failures == 1)
    assert rig.see("bad").error.startswith(type(exception).__name__)
    rig.send("good")  # the same thread, the same loop
    rig.until_gone("good")


def test_a_failed_message_runs_again_after_its_backoff(rig: Rig) -> None:
    attempts: list[int] = []

    def handler(message: Message[Any]) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise ValueError("not yet")

    rig.start(make_handler(handler, backoff=[60, 120]))
    rig.send("a")
    rig.broker.until(lambda: rig.see("a").failures == 1)
    rig.broker.advance(60_000)
    rig.broker.until(lambda: rig.see("a").failures == 2)
    assert attempts == [1, 2]
    rig.broker.advance(120_000)
    rig.until_gone("a")
    assert attempts == [1, 2, 3]


def test_the_last_attempt_is_buried_with_its_traceback(rig: Rig) -> None:
    def handler(message: Message[Any]) -> None:
        secret = "in a variable"
        raise ValueError(f"line one\nof {len(secret)}")

    rig.send("a", max_attempts=1)
    rig.drain(make_handler(handler))
    info = rig.see("a")
    assert (info.state, info.error) == (State.FAILED, "ValueError: line one of 13")
    assert "raise ValueError" in info.detail
    assert "in a variable" not in info.detail.replace('secret = "in a variable"', "")


def test_retry_with_a_delay_is_a_failure_due_then(rig: Rig) -> None:
    def handler(message: Message[Any]) -> None:
        raise Retry("2m")

    rig.send("a")
    rig.drain(make_handler(handler, backoff=1))
    info = rig.see("a")
    assert info.failures == 1
    assert info.due_ms >= rig.broker.queue.counts().now_ms + 100_000


def test_snooze_is_no_failure(rig: Rig) -> None:
    def handler(message: Message[Any]) -> None:
        raise Snooze("10m")

    rig.send("a", max_attempts=1)
    rig.drain(make_handler(handler))
    info = rig.see("a")
    assert (info.state, info.failures) == (State.PENDING, 0)
    assert info.due_ms >= rig.broker.queue.counts().now_ms + 500_000


@pytest.mark.parametrize("steer", [Retry, Snooze])
def test_a_message_runs_again_at_the_instant_that_its_handler_names(rig: Rig, steer: Callable[..., Exception]) -> None:
    at_ms = rig.broker.queue.counts().now_ms + 600_000

    def handler(message: Message[Any]) -> None:
        raise steer(at=from_ms(at_ms))

    rig.send("a")
    rig.drain(make_handler(handler))
    assert rig.see("a").due_ms == at_ms


def test_bury_gives_up_at_once(rig: Rig) -> None:
    def handler(message: Message[Any]) -> None:
        raise Bury("no such order")

    rig.send("a")
    rig.drain(make_handler(handler))
    assert (rig.see("a").state, rig.see("a").error) == (State.FAILED, "Bury: no such order")


@pytest.mark.parametrize("outcome", [ValueError("x"), Snooze(1)])
def test_at_most_once_never_starts_a_second_time(rig: Rig, outcome: Exception) -> None:
    def handler(message: Message[Any]) -> None:
        raise outcome

    rig.send("a", at_most_once=True)
    rig.drain(make_handler(handler))
    assert rig.see("a").state is State.FAILED


def test_what_expired_is_buried_without_a_start(rig: Rig) -> None:
    started: list[str] = []
    rig.send("a", expires_ms=1_000)
    rig.broker.advance(1_000)
    rig.drain(make_handler(lambda message: started.append(message.id)))
    assert (rig.see("a").state, started) == (State.FAILED, [])
    assert "expired" in rig.see("a").error


def test_a_next_try_after_expiry_buries_at_once(rig: Rig) -> None:
    def handler(message: Message[Any]) -> None:
        raise ValueError("x")

    rig.send("a", expires_ms=59_000)
    rig.send("b", expires_ms=90_000)
    rig.drain(make_handler(handler, backoff=60))
    assert (rig.see("a").state, rig.see("b").state) == (State.FAILED, State.PENDING)


def test_data_that_no_longer_fits_is_buried_not_retried(rig: Rig) -> None:
    started: list[int] = []

    def handler(message: Message[int]) -> None:
        started.append(message.data)

    rig.send("a", data="text")
    rig.send("b", data=1)
    rig.drain(make_handler(handler))
    assert (rig.see("a").state, started) == (State.FAILED, [1])
    assert "doesn't fit int" in rig.see("a").error


def test_a_backoff_that_raises_is_logged_and_the_default_used(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def handler(message: Message[Any]) -> None:
        raise ValueError("x")

    def backoff(attempt: int, exception: BaseException) -> float:
        raise SystemExit

    rig.send("a")
    with caplog.at_level(logging.ERROR, "django_delayq"):
        rig.drain(make_handler(handler, backoff=backoff))
    assert rig.see("a").due_ms >= rig.broker.queue.counts().now_ms + 10_000
    assert "The backoff of k is of no use (SystemExit)" in caplog.text


def test_a_message_that_someone_else_wrote_is_buried(rig: Rig) -> None:
    started: list[str] = []
    rig.send("a", "b")
    claim = rig.broker.queue.claim

    def claim_garbled(*args: Any, **kwargs: Any) -> Any:
        claims = claim(*args, **kwargs)
        for claimed in claims.messages:
            if claimed.id == "a":
                claimed.header = None
        return claims

    rig.broker.queue.claim = claim_garbled  # type: ignore[method-assign]
    rig.drain(make_handler(lambda message: started.append(message.id)))
    assert (rig.see("a").state, started) == (State.FAILED, ["b"])


def test_a_claim_with_a_foreign_message_is_kept_while_settling_fails(rig: Rig) -> None:
    rig.send("foreign", "a", "b")
    claim, settle = rig.broker.queue.claim, rig.broker.queue.apply
    faults: list[Exception] = [BrokerUnavailable("away") for _ in range(3)]

    def claim_garbled(*args: Any, **kwargs: Any) -> Any:
        claims = claim(*args, **kwargs)
        for claimed in claims.messages:
            if claimed.id == "foreign":
                claimed.header = None
        return claims

    def settle_or_fail(*args: Any, **kwargs: Any) -> Any:
        if faults:
            raise faults.pop()
        return settle(*args, **kwargs)

    rig.broker.queue.claim = claim_garbled  # type: ignore[method-assign]
    rig.broker.queue.apply = settle_or_fail  # type: ignore[method-assign]
    rig.broker.advance(1)
    rig.start(make_handler(lambda message: None))
    rig.until_gone("a", "b")
    rig.until_state("foreign", State.FAILED)
    assert rig.broker.queue.counts().totals["reclaimed"] == 0


def test_a_header_of_a_wrong_type_is_no_outage(
    rig: Rig, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    rig.send("bad", timeout_ms="x")
    rig.start(make_handler(lambda message: gate.wait(PATIENCE_S)))
    rig.until_state("bad", State.RUNNING)
    upkeeps = rig.broker.upkeeps
    rig.broker.until(lambda: rig.broker.upkeeps > upkeeps + 1)  # it was looked at
    claims = rig.broker.claims
    rig.broker.until(lambda: rig.broker.claims > claims)
    assert "Trying again until it works" not in caplog.text


def test_async_handlers_run_side_by_side_up_to_their_concurrency(rig: Rig) -> None:
    running, most = 0, 0

    async def handler(message: Message[Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):  # the others get their turns
            await asyncio.sleep(0)
        running -= 1

    rig.send(*map(str, range(30)))
    rig.drain(make_handler(handler, concurrency=3))
    assert rig.broker.queue.counts().totals["finished"] == 30
    assert most == 3


def test_at_most_once_of_the_handler_alone_never_starts_what_was_handed_out_before(rig: Rig) -> None:
    ran: list[str] = []
    rig.send("a")
    rig.broker.advance(1)
    assert rig.broker.queue.claim([ClaimRequest("default", "k", 1)], lease_ms=10, worker="dies").messages
    rig.broker.advance(11)
    rig.drain(make_handler(lambda message: ran.append(message.id), at_most_once=True))
    info = rig.see("a")
    assert (info.state, info.error) == (
        State.FAILED,
        "at_most_once: it was handed out before, and may have run in part",
    )
    assert ran == []
