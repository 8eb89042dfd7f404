"""How a lease ends, by each verb."""

import pytest

from django_delayq.brokers.base import BATCH, SettleAction
from django_delayq.core.message import State
from tests.brokers.rig import LEASE_MS, Rig, by_id, ids, settlement

HOUR = 3_600_000


def test_finish_ends_the_message(rig: Rig) -> None:
    rig.send("a")
    assert rig.settle(rig.claim_one(), SettleAction.FINISH)
    rig.assert_ended(State.FINISHED, "a")
    rig.assert_counted("finished", 1)


def test_retry_is_due_after_its_delay_with_a_failure(rig: Rig) -> None:
    rig.send("a", body=b"1", tag="t")
    claimed = rig.claim_one()
    assert rig.settle(claimed, SettleAction.RETRY, delay_ms=HOUR, error="ValueError: no")
    info = rig.get("a")
    assert (info.state, info.failures, info.crashes, info.error) == (State.PENDING, 1, 0, "ValueError: no")
    assert (info.body, info.header, info.holder, info.lease_end_ms) == (b"1", claimed.header, "", None)
    assert rig.claim() == []
    rig.advance(HOUR)
    assert [(again.id, again.failures) for again in rig.claim()] == [("a", 1)]
    rig.assert_total("retried", 1)


def test_snooze_is_due_after_its_delay_without_a_failure(rig: Rig) -> None:
    rig.send("a")
    claimed = rig.claim_one()
    assert rig.settle(claimed, SettleAction.SNOOZE, delay_ms=HOUR)
    info = rig.get("a")
    assert (info.state, info.failures, info.header) == (State.PENDING, 0, claimed.header)
    rig.advance(HOUR)
    assert [(again.id, again.failures) for again in rig.claim()] == [("a", 0)]
    rig.assert_total("snoozed", 1)


@pytest.mark.parametrize("verb", [SettleAction.RETRY, SettleAction.SNOOZE])
def test_a_named_due_time_is_kept_whatever_the_worker_takes_for_the_delay(rig: Rig, verb: SettleAction) -> None:
    now_ms = rig.broker.queue.counts().now_ms
    for id, at_ms in (("a", now_ms + HOUR), ("past", 1)):
        rig.send(id)
        transition = settlement(rig.claim_one(), verb, delay_ms=7)
        transition.at_ms = at_ms
        assert rig.broker.queue.apply([transition]) == [True]
    assert rig.get("a").due_ms == now_ms + HOUR
    assert now_ms <= rig.get("past").due_ms < now_ms + HOUR


def test_snooze_keeps_the_failures_so_far(rig: Rig) -> None:
    rig.send("a")
    rig.settle(rig.claim_one(), SettleAction.RETRY, error="once")
    rig.advance(1)
    rig.settle(rig.claim_one(), SettleAction.SNOOZE)
    assert rig.get("a").failures == 1


def test_retry_and_snooze_do_not_move_the_expiry(rig: Rig) -> None:
    for verb in (SettleAction.RETRY, SettleAction.SNOOZE):
        rig.send(verb, expires_ms=HOUR)
        claimed = rig.claim_one()
        rig.settle(claimed, verb, delay_ms=HOUR)
        assert claimed.header is not None
        assert rig.get(verb).header.expires_at_ms == claimed.header.expires_at_ms == claimed.due_ms + HOUR


def test_an_attempt_that_ends_by_itself_forgets_crashes(rig: Rig) -> None:
    for verb in (SettleAction.RETRY, SettleAction.SNOOZE):
        rig.send(verb)
        rig.crash(times=1)
        claimed = rig.claim_one()
        assert claimed.crashes == 1
        rig.settle(claimed, verb, delay_ms=HOUR)
        assert rig.get(verb).crashes == 0


def test_release_gives_it_back_to_its_old_place(rig: Rig) -> None:
    rig.send("first", delay_ms=1)
    rig.advance(100)
    rig.send("second", delay_ms=1)
    rig.advance(100)
    before = rig.get("first")
    (claimed,) = rig.claim(1)
    assert rig.settle(claimed, SettleAction.RELEASE)
    assert rig.get("first") == before
    assert ids(rig.claim()) == ["first", "second"]
    rig.assert_total("released", 1)


def test_release_goes_back_to_the_due_time_of_its_attempt(rig: Rig) -> None:
    rig.send("a")
    rig.settle(rig.claim_one(), SettleAction.RETRY, delay_ms=HOUR)
    rig.advance(2 * HOUR)
    claimed = rig.claim_one()
    rig.settle(claimed, SettleAction.RELEASE)
    assert rig.get("a").due_ms == claimed.due_ms


def test_release_counts_neither_failure_nor_crash(rig: Rig) -> None:
    rig.send("a")
    rig.crash(times=1)
    rig.settle(rig.claim_one(), SettleAction.RELEASE)
    assert (rig.get("a").failures, rig.get("a").crashes) == (0, 1)


def test_a_release_with_a_delay_is_due_after_it_and_counts_nothing_either(rig: Rig) -> None:
    rig.send("a", "b")
    rig.crash(times=1)
    claimed = by_id(rig.claim())
    assert rig.settle(claimed[0], SettleAction.RELEASE, delay_ms=HOUR)
    assert rig.settle(claimed[1], SettleAction.RELEASE)
    info = rig.get("a")
    assert (info.state, info.failures, info.crashes) == (State.PENDING, 0, 1)
    assert ids(rig.claim()) == ["b"]
    rig.advance(HOUR)
    assert rig.claim_one().id == "a"


def test_a_released_suspect_is_still_one(rig: Rig) -> None:
    rig.send("a")
    rig.crash(times=2)
    (claimed,) = rig.claim_suspect()
    rig.settle(claimed, SettleAction.RELEASE)
    assert rig.claim() == []
    assert ids(rig.claim_suspect()) == ["a"]


def test_interrupted_runs_for_a_second_more_and_counts_no_crash(rig: Rig) -> None:
    rig.send("a")
    assert rig.settle(rig.claim_one(), SettleAction.INTERRUPT)
    assert rig.get("a").state is State.RUNNING
    rig.advance(500)
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    assert rig.claim() == []
    rig.advance(500)
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    claimed = rig.claim_one()
    assert (claimed.failures, claimed.crashes) == (0, 0)


def test_an_interrupted_handler_that_ends_in_time_still_finishes(rig: Rig) -> None:
    rig.send("a")
    claimed = rig.claim_one()
    rig.settle(claimed, SettleAction.INTERRUPT)
    assert rig.settle(claimed, SettleAction.FINISH)
    rig.assert_ended(State.FINISHED, "a")


def test_to_interrupt_twice_is_to_interrupt_once(rig: Rig) -> None:
    rig.send("a")
    rig.crash(times=1)
    claimed = rig.claim_one()
    assert rig.settle(claimed, SettleAction.INTERRUPT)
    assert not rig.settle(claimed, SettleAction.INTERRUPT)
    rig.lapse()
    assert rig.get("a").crashes == 1


def test_an_interrupted_suspect_is_still_one(rig: Rig) -> None:
    rig.send("a")
    rig.crash(times=2)
    rig.settle(rig.claim_suspect()[0], SettleAction.INTERRUPT)
    rig.lapse()
    assert rig.get("a").state is State.READY
    assert ids(rig.claim_suspect()) == ["a"]


def test_bury_keeps_reason_and_traceback(rig: Rig) -> None:
    rig.send("a", body=b"1", tag="t")
    claimed = rig.claim_one()
    assert rig.settle(claimed, SettleAction.BURY, error="ValueError: no", detail="Traceback\n  ü 🐢\nValueError: no")
    info = rig.get("a")
    assert (info.state, info.error, info.detail) == (
        State.FAILED,
        "ValueError: no",
        "Traceback\n  ü 🐢\nValueError: no",
    )
    assert (info.body, info.header) == (b"1", claimed.header)
    assert info.buried_ms is not None
    assert info.buried_ms >= claimed.due_ms
    assert rig.claim() == []
    rig.assert_total("buried", 1)


@pytest.mark.parametrize(("failed", "failures"), [(True, 2), (False, 1)])
def test_a_bury_counts_a_failure_only_where_an_attempt_failed(rig: Rig, failed: bool, failures: int) -> None:
    rig.send("a")
    rig.settle(rig.claim_one(), SettleAction.RETRY, error="x")
    rig.advance(1)
    rig.settle(rig.claim_one(), SettleAction.BURY, error="y", failed=failed)
    assert rig.get("a").failures == failures


def test_what_is_kept_of_an_error_may_be_any_text(rig: Rig) -> None:
    odd = "a|b\x1fc\x1ed\x00e\n%s {0}"
    rig.send("a", "b")
    first, second = by_id(rig.claim())
    rig.settle(first, SettleAction.BURY, error="plain", detail=odd)
    rig.settle(second, SettleAction.RETRY, error="tab\tand ü")
    assert rig.get("a").error == "plain"
    assert rig.get("a").detail in (odd, odd.replace("\0", "\\x00"))  # PostgreSQL's text has no NUL
    assert (rig.get("b").error, rig.get("b").failures) == ("tab\tand ü", 1)


def test_a_mixed_batch_answers_in_order(rig: Rig) -> None:
    rig.send("a", "b", "c", "d")
    rig.send("e", key="other")
    a, b, c, d = by_id(rig.claim())
    e = rig.claim_one(key="other")
    lost = settlement(b, SettleAction.FINISH)
    lost.token += 1
    answers = rig.broker.queue.apply(
        [
            settlement(d, SettleAction.BURY, error="x"),
            settlement(a, SettleAction.FINISH),
            lost,
            settlement(e, SettleAction.RETRY, delay_ms=HOUR, error="x"),
            settlement(c, SettleAction.RELEASE),
            settlement(a, SettleAction.FINISH),
        ]
    )
    assert answers == [True, True, False, True, True, False]
    assert rig.states("b", "c", "d", "e") == [State.RUNNING, State.READY, State.FAILED, State.PENDING]


def test_a_full_batch_is_settled(rig: Rig) -> None:
    rig.send(*(f"{n}" for n in range(BATCH)))
    claimed = rig.claim_all()
    assert all(rig.broker.queue.apply([settlement(message, SettleAction.FINISH) for message in claimed]))
    rig.assert_counted("finished", BATCH)
