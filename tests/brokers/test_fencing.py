"""No late hand acts: who lost a lease changes nothing, whatever became of the message since."""

from dataclasses import replace

import pytest

from django_delayq.brokers.base import Claimed, SettleAction
from django_delayq.core.message import State
from tests.brokers.conftest import WITHOUT_STORE, name
from tests.brokers.rig import LEASE_MS, Rig, by_id, ids

VERBS = list(SettleAction)


def _try_all(rig: Rig, late: Claimed, id: str = "a") -> None:
    before = rig.look(id)
    for verb in VERBS:
        assert not rig.settle(late, verb, error="late", delay_ms=1), verb
    assert rig.broker.queue.renew([late], LEASE_MS) == [False]
    after = rig.look(id)
    assert after == before


@pytest.mark.parametrize(
    "rig", WITHOUT_STORE, ids=name, indirect=True
)  # with a store a lapse alone takes no lease away
def test_after_a_reclaim(rig: Rig) -> None:
    rig.send("a")
    late = rig.claim_one()
    rig.lapse()
    _try_all(rig, late)
    assert rig.get("a").state is State.READY


def test_after_a_reclaim_and_another_claim(rig: Rig) -> None:
    rig.send("a")
    late = rig.claim_one()
    rig.lapse()
    holder = rig.claim_one()
    _try_all(rig, late)
    assert rig.settle(holder, SettleAction.FINISH)


def test_after_the_other_finished(rig: Rig) -> None:
    rig.send("a")
    late = rig.claim_one()
    rig.lapse()
    rig.settle(rig.claim_one(), SettleAction.FINISH)
    _try_all(rig, late)


def test_after_the_id_was_sent_again_since_a_take_over(rig: Rig) -> None:
    rig.send("a", body=b"1")
    late = rig.claim_one()
    rig.lapse()
    rig.settle(rig.claim_one(), SettleAction.FINISH)
    rig.send("a", body=b"2", delay_ms=60_000)
    _try_all(rig, late)
    assert (rig.get("a").state, rig.get("a").body) == (State.PENDING, b"2")


def test_after_the_id_was_sent_again_and_is_running(rig: Rig) -> None:
    rig.send("a")
    late = rig.claim_one()
    rig.lapse()
    rig.settle(rig.claim_one(), SettleAction.FINISH)
    rig.send("a")
    holder = rig.claim_one()
    _try_all(rig, late)
    assert rig.settle(holder, SettleAction.FINISH)


def test_after_a_release_a_retry_or_a_bury_of_its_own(rig: Rig) -> None:
    for verb in (SettleAction.RELEASE, SettleAction.RETRY, SettleAction.SNOOZE, SettleAction.BURY):
        id = f"by {verb}"
        rig.send(id, key=verb)
        late = rig.claim_one(key=verb)
        assert rig.settle(late, verb, delay_ms=60_000, error="x")
        _try_all(rig, late, id)


def test_after_a_cancel_of_what_was_reclaimed(rig: Rig) -> None:
    rig.send("a")
    late = rig.claim_one()
    rig.lapse()
    assert rig.broker.queue.cancel(["a"]) == [True]
    _try_all(rig, late)
    rig.assert_ended(State.CANCELLED, "a")


def test_after_a_rescue(rig: Rig) -> None:
    rig.send("a", at_most_once=True)
    late = rig.claim_one()
    rig.lapse()
    assert rig.broker.queue.rescue(["a"]) == [True]
    _try_all(rig, late)
    assert rig.get("a").state is State.READY


def test_a_lapsed_lease_that_nobody_took_still_counts(rig: Rig) -> None:
    rig.send("a")
    claimed = rig.claim_one()
    rig.advance(LEASE_MS)
    assert rig.claim() == []
    assert rig.settle(claimed, SettleAction.FINISH)


@pytest.mark.parametrize("token", [0, 1, -1, 2**53])
def test_a_guessed_token_is_no_lease(rig: Rig, token: int) -> None:
    rig.send("waits", delay_ms=60_000)
    rig.send("a")
    claimed = rig.claim_one()
    for id in ("waits", "a", "unknown"):
        guess = replace(claimed, id=id, token=token + (token == claimed.token))
        assert not rig.settle(guess, SettleAction.FINISH)
        assert rig.broker.queue.renew([guess], LEASE_MS) == [False]


def test_renewing_keeps_a_lease(rig: Rig) -> None:
    rig.send("a", "b")
    a, b = by_id(rig.claim())
    rig.advance(LEASE_MS - 1_000)
    assert rig.broker.queue.renew([a, replace(b, token=b.token + 1)], LEASE_MS) == [True, False]
    rig.advance(2_000)
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    assert rig.states("a", "b") == [State.RUNNING, State.READY]
    assert ids(rig.claim()) == ["b"]


def test_renewing_sets_the_end_from_now(rig: Rig) -> None:
    rig.send("a")
    claimed = rig.claim_one()
    assert rig.broker.queue.renew([claimed], 60_000) == [True]
    info = rig.get("a")
    assert info.lease_end_ms is not None
    assert abs(info.lease_end_ms - rig.broker.queue.counts().now_ms - 60_000) < 5_000
