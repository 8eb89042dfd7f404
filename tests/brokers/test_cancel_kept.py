"""Who cancels what runs cancels what is kept for its end too. What is sent later is sent when the run ends."""

import pytest

from django_delayq.brokers.base import CancelRequest, Claimed, SettleAction
from django_delayq.core import transitions
from django_delayq.core.message import State
from tests.brokers.rig import Rig, settlement
from tests.brokers.test_cancel_running import YIELDING
from tests.brokers.test_debounce import put


def _mark(rig: Rig) -> CancelRequest:
    assert rig.broker.queue.cancel(["a"], "alice") == [True]
    request = rig.get("a").cancel_request
    assert request is not None
    return request


def _cancel(rig: Rig, held: Claimed, request: CancelRequest) -> None:
    assert rig.broker.queue.apply([transitions.cancel(held, request)]) == [True]
    rig.assert_counted("cancelled", 1)


def _assert_sent(rig: Rig, body: bytes) -> None:
    rig.advance(0)
    again = rig.claim_one()
    assert (again.id, again.body, again.failures, again.crashes) == ("a", body, 0, 0)
    info = rig.get("a")
    assert (info.cancel_request, info.again_ms, info.error) == (None, None, "")
    assert rig.settle(again, SettleAction.FINISH)


def test_what_was_kept_before_is_cancelled_with_the_message(rig: Rig) -> None:
    rig.send("a", body=b"1")
    held = rig.claim_one()
    put(rig, body=b"2")
    request = _mark(rig)
    assert rig.get("a").again_ms is None
    _cancel(rig, held, request)
    rig.assert_ended(State.CANCELLED, "a")
    assert rig.claim() == []


def test_what_was_kept_before_is_cancelled_also_if_the_message_finishes(rig: Rig) -> None:
    rig.send("a", body=b"1")
    held = rig.claim_one()
    put(rig, body=b"2")
    _mark(rig)
    assert rig.settle(held, SettleAction.FINISH)
    rig.assert_ended(State.FINISHED, "a")
    assert rig.claim() == []


def test_what_was_kept_before_is_cancelled_also_if_the_lease_runs_out(rig: Rig) -> None:
    rig.send("a", body=b"1")
    rig.claim_one()
    put(rig, body=b"2")
    _mark(rig)
    rig.lapse()
    assert rig.claim() == []
    rig.assert_ended(State.CANCELLED, "a")


def test_a_cancel_of_what_waits_leaves_what_is_kept(rig: Rig) -> None:
    rig.send("a", body=b"1")
    held = rig.claim_one()
    put(rig, body=b"2")
    assert rig.broker.queue.cancel(["a"]) == [False]
    assert rig.settle(held, SettleAction.FINISH)
    _assert_sent(rig, b"2")


def test_what_is_sent_after_the_mark_is_sent_when_the_cancelled_run_ends(rig: Rig) -> None:
    rig.send("a", body=b"1")
    held = rig.claim_one()
    request = _mark(rig)
    assert put(rig, body=b"2").kept
    assert rig.get("a").cancel_request == request
    _cancel(rig, held, request)
    _assert_sent(rig, b"2")


def test_of_sends_before_and_after_the_mark_the_later_is_sent(rig: Rig) -> None:
    rig.send("a", body=b"1")
    held = rig.claim_one()
    put(rig, body=b"2")
    request = _mark(rig)
    put(rig, body=b"3")
    _cancel(rig, held, request)
    assert rig.get("a").merged == 0
    _assert_sent(rig, b"3")


def test_each_cancel_drops_what_is_kept_and_the_first_stays_the_one_who_asked(rig: Rig) -> None:
    rig.send("a", body=b"1")
    held = rig.claim_one()
    request = _mark(rig)
    put(rig, body=b"2")
    assert rig.broker.queue.cancel(["a"], "bob") == [True]
    info = rig.get("a")
    assert (info.cancel_request, info.again_ms) == (request, None)
    _cancel(rig, held, request)
    rig.assert_ended(State.CANCELLED, "a")
    assert rig.claim() == []


@pytest.mark.parametrize("verb", YIELDING)
def test_no_end_but_a_good_one_sends_what_is_kept_before_the_worker_cancels(rig: Rig, verb: SettleAction) -> None:
    rig.send("a", body=b"1")
    held = rig.claim_one()
    request = _mark(rig)
    put(rig, body=b"2")
    before = rig.look("a")
    assert rig.broker.queue.apply([settlement(held, verb, delay_ms=1, error="no")]) == [request]
    assert rig.look("a") == before
    _cancel(rig, held, request)
    _assert_sent(rig, b"2")


def test_what_is_sent_after_the_mark_is_sent_also_if_the_message_finishes(rig: Rig) -> None:
    rig.send("a", body=b"1")
    held = rig.claim_one()
    _mark(rig)
    put(rig, body=b"2")
    assert rig.settle(held, SettleAction.FINISH)
    rig.assert_counted("cancelled", 0)
    _assert_sent(rig, b"2")


@pytest.mark.parametrize("at_most_once", [False, True])
def test_what_is_sent_after_the_mark_is_sent_also_if_the_lease_runs_out(rig: Rig, at_most_once: bool) -> None:
    rig.send("a", body=b"1", at_most_once=at_most_once)
    held = rig.claim_one()
    _mark(rig)
    put(rig, body=b"2")
    rig.lapse()
    _assert_sent(rig, b"2")
    rig.assert_counted("cancelled", 1)
    assert not rig.settle(held, SettleAction.FINISH)


def test_what_the_stop_of_a_worker_interrupts_is_cancelled_and_what_is_kept_is_sent(rig: Rig) -> None:
    rig.send("a", body=b"1")
    held = rig.claim_one()
    _mark(rig)
    put(rig, body=b"2")
    assert rig.settle(held, SettleAction.INTERRUPT)
    assert rig.get("a").again_ms is not None
    rig.lapse()
    _assert_sent(rig, b"2")
    rig.assert_counted("cancelled", 1)


def test_a_batch_of_cancels_sends_only_what_is_kept(rig: Rig) -> None:
    rig.send("a", "b", body=b"1")
    held = {one.id: one for one in rig.claim()}
    rig.broker.queue.cancel(["a", "b"], "alice")
    put(rig, "a", body=b"2")
    request = rig.get("a").cancel_request
    assert request is not None
    assert rig.broker.queue.apply([transitions.cancel(held[id], request) for id in ("b", "a")]) == [True, True]
    rig.assert_counted("cancelled", 2)
    rig.assert_ended(State.CANCELLED, "b")
    _assert_sent(rig, b"2")
