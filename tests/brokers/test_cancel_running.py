"""A message that runs is asked to end: it is cancelled when its lease ends, unless it finishes. It can say how far."""

import pytest

from django_delayq.brokers.base import CancelRequest, SettleAction
from django_delayq.core import transitions
from django_delayq.core.message import State
from tests.brokers.rig import LEASE_MS, Rig, settlement

YIELDING = [
    SettleAction.RETRY,
    SettleAction.SNOOZE,
    SettleAction.RELEASE,
    SettleAction.CRASH,
    SettleAction.LAPSE,
    SettleAction.BURY,
]


def _asked(rig: Rig, id: str) -> CancelRequest:
    request = rig.get(id).cancel_request
    assert request is not None
    return request


def test_what_runs_goes_on_unless_it_is_meant_too(rig: Rig) -> None:
    rig.send("a")
    held = rig.claim_one()
    assert rig.broker.queue.cancel(["a"]) == [False]
    assert rig.get("a").cancel_request is None
    assert rig.broker.queue.renew([held], LEASE_MS) == [True]


def test_what_waits_is_cancelled_beside_what_runs(rig: Rig) -> None:
    rig.send("runs")
    rig.claim_one()
    rig.send("waits", delay_ms=LEASE_MS)
    assert rig.broker.queue.cancel(["waits", "runs", "nowhere"], "alice") == [True, True, False]
    rig.assert_ended(State.CANCELLED, "waits")
    assert rig.get("runs").state is State.RUNNING
    assert _asked(rig, "runs").by == "alice"


def test_each_renewal_tells_who_asked_and_when(rig: Rig) -> None:
    rig.send("a", "b")
    held = rig.claim()
    before_ms = rig.broker.queue.counts().now_ms
    rig.broker.queue.cancel(["a"], "alice")
    request = _asked(rig, "a")
    assert before_ms <= request.at_ms <= rig.broker.queue.counts().now_ms
    for _ in range(2):
        renewed = dict(zip([one.id for one in held], rig.broker.queue.renew(held, LEASE_MS), strict=True))
        assert renewed == {"a": request, "b": True}


def test_who_asked_first_stays_the_one_who_asked(rig: Rig) -> None:
    rig.send("a")
    rig.claim_one()
    assert rig.broker.queue.cancel(["a"], "alice") == [True]
    first = _asked(rig, "a")
    assert rig.broker.queue.cancel(["a"], "bob") == [True]
    assert _asked(rig, "a") == first


def test_who_asks_need_not_say_so(rig: Rig) -> None:
    rig.send("a")
    held = rig.claim_one()
    rig.broker.queue.cancel(["a"], "")
    assert _asked(rig, "a").by == ""
    assert rig.broker.queue.renew([held], LEASE_MS) == [_asked(rig, "a")]


@pytest.mark.parametrize("verb", YIELDING)
def test_no_end_but_a_good_one_is_written_before_the_worker_cancels(rig: Rig, verb: SettleAction) -> None:
    rig.send("a")
    held = rig.claim_one()
    rig.broker.queue.cancel(["a"], "alice")
    before = rig.look("a")
    assert before is not None
    assert rig.broker.queue.apply([settlement(held, verb, delay_ms=1, error="no")]) == [before.cancel_request]
    assert rig.look("a") == before
    assert before.cancel_request is not None
    assert rig.broker.queue.apply([transitions.cancel(held, before.cancel_request)]) == [True]
    rig.assert_ended(State.CANCELLED, "a")
    rig.assert_counted("cancelled", 1)
    if (info := rig.look("a")) is not None:
        assert (info.error, info.failures) == ("cancelled while it ran, by alice", 0)


def test_a_batch_of_ends_has_each_its_own_answer(rig: Rig) -> None:
    rig.send("a", "b", "c")
    held = {one.id: one for one in rig.claim()}
    rig.broker.queue.cancel(["a", "c"], "alice")
    request = _asked(rig, "a")
    ends = [
        settlement(held["a"], SettleAction.RETRY, error="no"),
        settlement(held["b"], SettleAction.RETRY, error="no"),
        settlement(held["c"], SettleAction.FINISH),
    ]
    answers = rig.broker.queue.apply(ends)
    assert isinstance(answers[0], CancelRequest)
    assert (answers[0].by, answers[1:]) == (request.by, [True, True])
    assert rig.get("b").failures == 1
    rig.assert_ended(State.FINISHED, "c")


def test_what_finishes_first_is_finished(rig: Rig) -> None:
    rig.send("a")
    held = rig.claim_one()
    rig.broker.queue.cancel(["a"], "alice")
    assert rig.settle(held, SettleAction.FINISH)
    rig.assert_ended(State.FINISHED, "a")
    rig.assert_counted("cancelled", 0)


@pytest.mark.parametrize("at_most_once", [False, True])
def test_a_lease_that_runs_out_cancels_its_message(rig: Rig, at_most_once: bool) -> None:
    rig.send("a", at_most_once=at_most_once)
    held = rig.claim_one()
    rig.broker.queue.cancel(["a"], "alice")
    rig.lapse()
    assert rig.claim() == []  # with a store, the claim that meets the lapsed lease ends it
    rig.assert_ended(State.CANCELLED, "a")
    rig.assert_counted("cancelled", 1)
    assert not rig.settle(held, SettleAction.FINISH)


def test_a_suspect_whose_lease_runs_out_is_cancelled(rig: Rig) -> None:
    rig.send("a")
    rig.crash(2)
    assert rig.claim_suspect()
    rig.broker.queue.cancel(["a"], "alice")
    rig.lapse()
    assert rig.claim_suspect() == []
    rig.assert_ended(State.CANCELLED, "a")


def test_what_the_stop_of_a_worker_interrupts_is_cancelled_then(rig: Rig) -> None:
    rig.send("a")
    held = rig.claim_one()
    rig.broker.queue.cancel(["a"], "alice")
    assert rig.settle(held, SettleAction.INTERRUPT)
    assert _asked(rig, "a").by == "alice"
    rig.lapse()
    assert rig.claim() == []
    rig.assert_ended(State.CANCELLED, "a")


def test_a_request_of_one_run_is_none_of_a_later_message_of_the_id(rig: Rig) -> None:
    rig.send("a")
    held = rig.claim_one()
    rig.broker.queue.cancel(["a"], "alice")
    assert rig.settle(held, SettleAction.FINISH)
    rig.send("a")
    again = rig.claim_one()
    assert rig.get("a").cancel_request is None
    assert rig.broker.queue.renew([again], LEASE_MS) == [True]


def test_progress_is_written_with_a_renewal_and_stays(rig: Rig) -> None:
    rig.send("a", "b")
    held = rig.claim()
    of_a = next(one for one in held if one.id == "a")
    lease = of_a.id, of_a.token
    assert rig.broker.queue.renew(held, LEASE_MS, {lease: "0.4 12 of 30, 等等"}) == [True, True]
    assert (rig.get("a").progress, rig.get("b").progress) == ("0.4 12 of 30, 等等", "")
    rig.broker.queue.renew(held, LEASE_MS)
    assert rig.get("a").progress == "0.4 12 of 30, 等等"
    rig.broker.queue.renew(held, LEASE_MS, {lease: "1"})
    assert rig.get("a").progress == "1"


def test_who_lost_the_lease_writes_no_progress(rig: Rig) -> None:
    rig.send("a")
    late = rig.claim_one()
    rig.lapse()
    rig.claim_one()
    assert rig.broker.queue.renew([late], LEASE_MS, {(late.id, late.token): "1"}) == [False]
    assert rig.get("a").progress == ""


@pytest.mark.parametrize("verb", [SettleAction.RETRY, SettleAction.RELEASE])
def test_progress_is_of_one_attempt(rig: Rig, verb: SettleAction) -> None:
    rig.send("a")
    held = rig.claim_one()
    rig.broker.queue.renew([held], LEASE_MS, {(held.id, held.token): "0.5"})
    assert rig.settle(held, verb)
    rig.advance(1)
    rig.claim_one()
    assert rig.get("a").progress == ""


def test_progress_and_a_request_stand_side_by_side(rig: Rig) -> None:
    rig.send("a")
    held = rig.claim_one()
    rig.broker.queue.renew([held], LEASE_MS, {(held.id, held.token): "0.5 half"})
    rig.broker.queue.cancel(["a"], "alice")
    renewed = rig.broker.queue.renew([held], LEASE_MS, {(held.id, held.token): "0.6"})
    info = rig.get("a")
    assert renewed == [info.cancel_request]
    assert (info.progress, info.failures, info.holder) == ("0.6", 0, "w")
