"""Sends that are merged: `max_wait` bounds how long, and what is sent during a run is there when the run ends."""

from typing import Any

import pytest

from django_delayq.brokers.base import Enqueued, SettleAction
from django_delayq.core.message import State
from tests.brokers.rig import LEASE_MS, Rig, ids, settlement

MINUTE = 60_000
HOUR = 60 * MINUTE
SLACK = 30_000
"""More than a test takes: some brokers go by a real clock."""


def put(rig: Rig, id: str = "a", **options: Any) -> Enqueued:
    (enqueued,) = rig.send(id, on_conflict="replace", while_running="again", **options)
    return enqueued


def wait_ms(rig: Rig, due_ms: int) -> int:
    return due_ms - rig.now_us() // 1000


def test_max_wait_counts_from_the_first_send(rig: Rig) -> None:
    rig.send("a", delay_ms=30 * MINUTE)
    for _ in range(3):
        rig.advance(15 * MINUTE)
        (enqueued,) = rig.send("a", delay_ms=30 * MINUTE, on_conflict="replace", max_wait_ms=HOUR)
        assert enqueued.due_ms == rig.get("a").due_ms == rig.get("a").header.scheduled_ms
    assert wait_ms(rig, enqueued.due_ms) == pytest.approx(15 * MINUTE, abs=SLACK)
    assert rig.get("a").merged == 3
    rig.advance(0)  # schedules what this clock has run past


def test_max_wait_that_is_over_makes_it_due_now(rig: Rig) -> None:
    rig.send("a", delay_ms=2 * HOUR)
    rig.advance(90 * MINUTE)
    (enqueued,) = rig.send("a", delay_ms=30 * MINUTE, on_conflict="replace", max_wait_ms=HOUR)
    assert abs(wait_ms(rig, enqueued.due_ms)) < SLACK
    rig.advance(0)
    assert ids(rig.claim()) == ["a"]


def test_max_wait_leaves_an_earlier_due_time(rig: Rig) -> None:
    rig.send("a", delay_ms=30 * MINUTE)
    (enqueued,) = rig.send("a", delay_ms=10 * MINUTE, on_conflict="replace", max_wait_ms=HOUR)
    assert wait_ms(rig, enqueued.due_ms) == pytest.approx(10 * MINUTE, abs=SLACK)


def test_max_wait_counts_anew_after_an_attempt(rig: Rig) -> None:
    rig.send("a")
    rig.advance(2 * HOUR)
    assert rig.settle(rig.claim_one(), SettleAction.RETRY, delay_ms=MINUTE)
    (enqueued,) = rig.send("a", delay_ms=30 * MINUTE, on_conflict="replace", max_wait_ms=HOUR)
    assert wait_ms(rig, enqueued.due_ms) == pytest.approx(30 * MINUTE, abs=SLACK)
    rig.advance(0)


def test_max_wait_counts_anew_for_a_new_message(rig: Rig) -> None:
    rig.send("a")
    rig.send("a", on_conflict="replace")
    rig.advance(2 * HOUR)
    assert rig.settle(rig.claim_one(), SettleAction.FINISH)
    rig.send("a", delay_ms=30 * MINUTE)
    assert rig.get("a").merged == 0
    (enqueued,) = rig.send("a", delay_ms=30 * MINUTE, on_conflict="replace", max_wait_ms=HOUR)
    assert wait_ms(rig, enqueued.due_ms) == pytest.approx(30 * MINUTE, abs=SLACK)
    rig.advance(0)


def test_max_wait_goes_on_after_a_release(rig: Rig) -> None:
    rig.send("a")
    rig.advance(2 * HOUR)
    assert rig.settle(rig.claim_one(), SettleAction.RELEASE)
    (enqueued,) = rig.send("a", delay_ms=30 * MINUTE, on_conflict="replace", max_wait_ms=HOUR)
    assert abs(wait_ms(rig, enqueued.due_ms)) < SLACK


def test_a_send_during_a_run_waits_for_its_end(rig: Rig) -> None:
    rig.send("a", body=b"1")
    claimed = rig.claim_one()
    enqueued = put(rig, body=b"2", tag="t", expires_ms=HOUR, max_attempts=3)
    assert (enqueued.created, enqueued.running, enqueued.kept) == (False, True, True)
    rig.advance(0)
    assert rig.claim() == []
    info = rig.get("a")
    assert (info.state, info.body) == (State.RUNNING, b"1")
    assert info.again_ms == pytest.approx(enqueued.due_ms, abs=5)
    assert rig.settle(claimed, SettleAction.FINISH)
    rig.advance(0)
    again = rig.claim_one()
    assert again.header is not None
    assert (again.body, again.failures, again.header.tag, again.header.max_attempts) == (b"2", 0, "t", 3)
    assert again.header.expires_ms == HOUR
    assert again.token != claimed.token
    assert rig.settle(again, SettleAction.FINISH)
    rig.advance(0)
    assert rig.claim() == []
    rig.assert_counted("finished", 2)
    rig.assert_counted("sent", 2)


def test_without_again_a_send_during_a_run_is_dropped(rig: Rig) -> None:
    rig.send("a", body=b"1")
    claimed = rig.claim_one()
    (enqueued,) = rig.send("a", body=b"2", on_conflict="replace")
    assert (enqueued.created, enqueued.running, enqueued.kept) == (False, True, False)
    assert rig.settle(claimed, SettleAction.FINISH)
    rig.advance(0)
    assert rig.claim() == []


def test_the_newest_of_many_sends_during_a_run_counts(rig: Rig) -> None:
    rig.send("a", body=b"1")
    claimed = rig.claim_one()
    for n in range(2, 6):
        put(rig, body=b"%d" % n)
    assert rig.get("a").merged == 3  # the first is kept, and each of the others took the place of the one before
    assert rig.settle(claimed, SettleAction.FINISH)
    rig.advance(0)
    assert rig.get("a").merged == 3
    assert rig.claim_one().body == b"5"


def test_what_is_kept_is_due_when_its_own_time_comes(rig: Rig) -> None:
    rig.send("a")
    claimed = rig.claim_one()
    put(rig, delay_ms=HOUR)
    assert rig.settle(claimed, SettleAction.FINISH)
    rig.advance(0)
    assert rig.claim() == []
    assert wait_ms(rig, rig.get("a").due_ms) == pytest.approx(HOUR, abs=SLACK)
    rig.advance(HOUR)
    assert ids(rig.claim()) == ["a"]


def test_max_wait_bounds_what_is_kept(rig: Rig) -> None:
    rig.send("a")
    claimed = rig.claim_one()
    put(rig, delay_ms=30 * MINUTE, max_wait_ms=HOUR)
    for _ in range(3):
        rig.advance(15 * MINUTE)
        put(rig, delay_ms=30 * MINUTE, max_wait_ms=HOUR)
    assert wait_ms(rig, rig.get("a").again_ms or 0) == pytest.approx(15 * MINUTE, abs=SLACK)
    assert rig.settle(claimed, SettleAction.FINISH)
    assert wait_ms(rig, rig.get("a").due_ms) == pytest.approx(15 * MINUTE, abs=SLACK)
    rig.advance(5 * MINUTE)
    enqueued = put(rig, delay_ms=30 * MINUTE, max_wait_ms=HOUR)  # the first of them is still the first
    assert wait_ms(rig, enqueued.due_ms) == pytest.approx(10 * MINUTE, abs=SLACK)
    assert rig.get("a").merged == 4


def test_what_is_kept_goes_to_its_own_queue_and_key(rig: Rig) -> None:
    rig.send("a")
    claimed = rig.claim_one()
    put(rig, queue="other", key="l")
    assert rig.settle(claimed, SettleAction.FINISH)
    rig.advance(0)
    assert rig.claim() == []
    assert ids(rig.claim(queue="other", key="l")) == ["a"]


@pytest.mark.parametrize("verb", [SettleAction.RETRY, SettleAction.SNOOZE, SettleAction.RELEASE, SettleAction.CRASH])
def test_what_is_kept_replaces_a_message_that_waits_again(rig: Rig, verb: SettleAction) -> None:
    rig.send("a", body=b"1")
    claimed = rig.claim_one()
    put(rig, body=b"2")
    end = settlement(claimed, verb, delay_ms=HOUR, error="once")
    assert rig.broker.queue.apply([end]) == [True]
    assert end.is_replaced
    rig.advance(0)
    again = rig.claim_one()
    assert (again.body, again.failures, again.crashes) == (b"2", 0, 0)
    assert rig.get("a").merged == 1
    assert rig.total("sent") == 1


def test_a_message_for_which_nothing_is_kept_is_not_replaced(rig: Rig) -> None:
    rig.send("a")
    end = settlement(rig.claim_one(), SettleAction.RETRY, delay_ms=HOUR)
    assert rig.broker.queue.apply([end]) == [True]
    assert not end.is_replaced
    rig.advance(0)


def test_what_is_kept_takes_the_place_of_a_suspect(rig: Rig) -> None:
    rig.send("a", body=b"1")
    rig.crash(times=1)
    claimed = rig.claim_one()
    put(rig, body=b"2")
    rig.crash_child(claimed)
    rig.advance(0)
    assert rig.claim_suspect() == []
    assert rig.claim_one().body == b"2"


def test_what_is_kept_is_sent_when_the_lease_runs_out(rig: Rig) -> None:
    rig.send("a", body=b"1")
    claimed = rig.claim_one()
    put(rig, body=b"2")
    rig.lapse()
    rig.advance(0)
    again = rig.claim_one()
    assert (again.body, again.crashes) == (b"2", 0)
    assert not rig.settle(claimed, SettleAction.FINISH)


def test_what_is_kept_is_sent_when_a_message_that_must_not_start_twice_is_buried(rig: Rig) -> None:
    rig.send("a", body=b"1", at_most_once=True)
    rig.claim_one()
    put(rig, body=b"2", at_most_once=True)
    rig.lapse()
    rig.advance(0)
    assert rig.claim_one().body == b"2"
    assert [info.body for info in rig.broker.queue.failed(10)] == [b"1"]


def test_what_is_kept_is_sent_when_the_run_is_buried(rig: Rig) -> None:
    rig.send("a", body=b"1")
    claimed = rig.claim_one()
    put(rig, body=b"2")
    assert rig.settle(claimed, SettleAction.BURY, error="no good", detail="Traceback")
    rig.advance(0)
    assert rig.claim_one().body == b"2"
    assert [info.body for info in rig.broker.queue.failed(10)] == [b"1"]


def test_an_interrupted_run_goes_on_and_keeps_the_send(rig: Rig) -> None:
    rig.send("a", body=b"1")
    claimed = rig.claim_one()
    put(rig, body=b"2")
    assert rig.settle(claimed, SettleAction.INTERRUPT)
    assert rig.get("a").state is State.RUNNING
    assert rig.settle(claimed, SettleAction.FINISH)
    rig.advance(0)
    assert rig.claim_one().body == b"2"


def test_a_renewal_leaves_what_is_kept(rig: Rig) -> None:
    rig.send("a", body=b"1")
    claimed = rig.claim_one()
    put(rig, body=b"2")
    assert rig.broker.queue.renew([claimed], LEASE_MS) == [True]
    assert rig.settle(claimed, SettleAction.FINISH)
    rig.advance(0)
    assert rig.claim_one().body == b"2"


def test_a_worker_that_lost_its_lease_sends_nothing(rig: Rig) -> None:
    rig.send("a", body=b"1")
    late = rig.claim_one()
    rig.lapse()
    rig.advance(0)
    claimed = rig.claim_one()
    put(rig, body=b"2")
    assert not rig.settle(late, SettleAction.FINISH)
    assert rig.get("a").again_ms is not None
    assert rig.settle(claimed, SettleAction.FINISH)
    rig.advance(0)
    assert rig.claim_one().body == b"2"


def test_ends_of_runs_with_and_without_something_kept_are_written_together(rig: Rig) -> None:
    many = [f"{n:02}" for n in range(40)]
    rig.send(*many, body=b"1")
    claimed = rig.claim()
    rig.send(*many[::3], body=b"2", on_conflict="replace", while_running="again")
    assert all(rig.broker.queue.apply([settlement(one, SettleAction.FINISH) for one in claimed]))
    rig.advance(0)
    assert sorted((one.id, one.body) for one in rig.claim_all()) == [(id, b"2") for id in many[::3]]


def test_again_sends_as_usual_if_nothing_runs(rig: Rig) -> None:
    assert put(rig, body=b"1").created
    enqueued = put(rig, body=b"2")
    assert (enqueued.created, enqueued.running, enqueued.kept) == (False, False, False)
    rig.advance(0)
    assert rig.claim_one().body == b"2"
