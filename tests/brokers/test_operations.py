"""cancel, reschedule, rescue and purge: of what they may move, and of nothing else."""

import pytest

from django_delayq.brokers.base import BATCH, SettleAction
from django_delayq.core.message import State
from tests.brokers.rig import LEASE_MS, Rig, ids

HOUR = 3_600_000


def _one_in_each_state(rig: Rig) -> None:
    rig.bury("error")
    rig.send("suspect", key="s")
    for _ in range(2):
        rig.claim_one(key="s")
        rig.lapse()
    rig.send("running")
    rig.claim_one()
    rig.send("pending", delay_ms=HOUR, key="p", queue="other")
    rig.send("ready")
    assert rig.states("pending", "ready", "suspect", "running", "error") == [
        State.PENDING,
        State.READY,
        State.READY,
        State.RUNNING,
        State.FAILED,
    ]


ALL = ["pending", "ready", "suspect", "running", "error", "unknown"]


def test_cancel_stops_what_waits(rig: Rig) -> None:
    _one_in_each_state(rig)
    assert rig.broker.queue.cancel(ALL) == [True, True, True, False, False, False]
    rig.assert_ended(State.CANCELLED, "pending", "ready", "suspect")
    assert rig.states("running", "error") == [State.RUNNING, State.FAILED]
    rig.advance(2 * HOUR)
    assert rig.claim() == rig.claim_suspect("s") == rig.claim(key="p", queue="other") == []
    assert rig.total("cancelled") == 3


def test_cancel_twice_stops_once(rig: Rig) -> None:
    rig.send("a")
    assert rig.broker.queue.cancel(["a", "a"]) == [True, False]
    assert rig.broker.queue.cancel(["a"]) == [False]
    assert rig.broker.queue.cancel([]) == []


def test_cancelled_and_sent_again_for_later_runs_later(rig: Rig) -> None:
    rig.send("a", body=b"1")
    rig.broker.queue.cancel(["a"])
    (placed,) = rig.send("a", body=b"2", delay_ms=HOUR)
    assert placed.created
    assert rig.claim() == []
    rig.advance(HOUR)
    assert [(claimed.id, claimed.body) for claimed in rig.claim()] == [("a", b"2")]


def test_sent_again_it_starts_without_the_counts_of_the_cancelled(rig: Rig) -> None:
    rig.send("a")
    rig.settle(rig.claim_one(), SettleAction.RETRY, delay_ms=HOUR, error="x")
    rig.broker.queue.cancel(["a"])
    rig.send("a")
    assert (rig.get("a").failures, rig.get("a").error) == (0, "")


def test_a_lapsed_lease_is_reclaimed_before_a_move_takes_its_message(rig: Rig) -> None:
    rig.send("a")
    rig.claim_one()
    rig.advance(LEASE_MS)
    assert rig.states("a") == [State.RUNNING]
    assert rig.broker.queue.counts().running == 1
    assert (
        rig.broker.queue.cancel(["a"])
        == rig.broker.queue.reschedule(["a"], delay_ms=HOUR)
        == rig.broker.queue.purge(["a"])
        == [False]
    )
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    assert rig.states("a") == [State.READY]
    assert rig.broker.queue.reschedule(["a"], delay_ms=HOUR) == rig.broker.queue.cancel(["a"]) == [True]
    assert rig.total("cancelled") == 1


def test_reschedule_moves_what_waits(rig: Rig) -> None:
    _one_in_each_state(rig)
    running, error = rig.get("running"), rig.get("error")
    assert rig.broker.queue.reschedule(ALL, delay_ms=2 * HOUR) == [True, True, True, False, False, False]
    assert rig.states("pending", "ready", "suspect") == [State.PENDING] * 3
    assert (rig.get("running"), rig.get("error")) == (running, error)
    assert rig.claim() == rig.claim_suspect("s") == []
    rig.advance(2 * HOUR)
    assert ids(rig.claim()) == ["ready"]
    assert ids(rig.claim(key="p", queue="other")) == ["pending"]
    assert ids(rig.claim_suspect("s")) == ["suspect"]


def test_reschedule_to_earlier_and_into_the_past(rig: Rig) -> None:
    rig.send("a", "b", delay_ms=2 * HOUR)
    assert rig.broker.queue.reschedule(["a"], delay_ms=HOUR) == [True]
    assert rig.broker.queue.reschedule(["b"], at_ms=1) == [True]
    assert ids(rig.claim()) == ["b"]
    rig.advance(HOUR)
    assert ids(rig.claim()) == ["a"]


def test_reschedule_to_an_instant_keeps_it(rig: Rig) -> None:
    rig.send("a")
    at_ms = rig.broker.queue.counts().now_ms + HOUR + 7
    rig.broker.queue.reschedule(["a"], at_ms=at_ms)
    assert rig.get("a").due_ms == rig.get("a").header.scheduled_ms == at_ms


def test_reschedule_moves_the_expiry_and_keeps_the_counts(rig: Rig) -> None:
    rig.send("a", expires_ms=60_000, body=b"1")
    rig.settle(rig.claim_one(), SettleAction.RETRY, error="x")
    rig.broker.queue.reschedule(["a"], delay_ms=HOUR)
    info = rig.get("a")
    assert info.header.expires_at_ms == info.due_ms + 60_000
    assert (info.failures, info.error, info.body) == (1, "x", b"1")


def test_rescue_makes_it_ready_with_counts_anew(rig: Rig) -> None:
    rig.send("a", body=b"1", tag="t", expires_ms=60_000)
    rig.settle(rig.claim_one(), SettleAction.RETRY, error="x")
    rig.advance(1)
    rig.settle(rig.claim_one(), SettleAction.BURY, error="y", detail="z")
    rig.advance(HOUR)
    assert rig.broker.queue.rescue(["a", "unknown"]) == [True, False]
    info = rig.get("a")
    assert (info.state, info.failures, info.crashes, info.error, info.detail) == (State.READY, 0, 0, "", "")
    assert (info.body, info.header.tag) == (b"1", "t")
    assert rig.broker.queue.failed(10) == []
    rig.assert_total("rescued", 1)
    assert ids(rig.claim()) == ["a"]


def test_rescue_moves_the_expiry_so_that_it_can_run(rig: Rig) -> None:
    rig.bury("a", expires_ms=60_000)
    rig.advance(HOUR)
    rig.broker.queue.rescue(["a"])
    expires_at_ms = rig.get("a").header.expires_at_ms
    assert expires_at_ms is not None
    assert expires_at_ms > rig.broker.queue.counts().now_ms


def test_rescue_of_what_killed_its_worker_gives_it_three_lives_again(rig: Rig) -> None:
    rig.send("a")
    rig.crash(times=2)
    rig.crash_child(rig.claim_suspect()[0])
    rig.broker.queue.rescue(["a"])
    assert not rig.get("a").suspect
    rig.crash(times=2)
    assert rig.get("a").suspect


@pytest.mark.parametrize("runs", [False, True])
def test_rescue_is_refused_while_the_id_waits_or_runs(rig: Rig, runs: bool) -> None:
    rig.bury("a", body=b"old")
    rig.send("a", body=b"new")
    if runs:
        rig.claim_one()
    assert rig.broker.queue.rescue(["a"]) == [False]
    assert rig.get("a").body == b"new"
    assert [info.body for info in rig.broker.queue.failed(10)] == [b"old"]


def test_an_id_may_be_buried_many_times_and_rescue_takes_the_newest(rig: Rig) -> None:
    for body in (b"1", b"2", b"3"):
        rig.bury("a", body=body)
        rig.advance(10)
    assert [info.body for info in rig.broker.queue.failed(10)] == [b"3", b"2", b"1"]
    assert rig.get("a").body == b"3"
    assert rig.broker.queue.rescue(["a", "a"]) == [True, False]
    assert rig.claim_one().body == b"3"
    assert [info.body for info in rig.broker.queue.failed(10)] == [b"2", b"1"]


def test_purge_removes_what_waits(rig: Rig) -> None:
    _one_in_each_state(rig)
    assert rig.broker.queue.purge(ALL) == [True, True, True, False, False, False]
    assert [rig.look(id) for id in ("pending", "ready", "suspect")] == [None] * 3
    assert rig.states("running", "error") == [State.RUNNING, State.FAILED]
    rig.assert_counted("purged", 3)


def test_purge_failed_removes_what_is_buried(rig: Rig) -> None:
    _one_in_each_state(rig)
    assert rig.broker.queue.purge_failed(ALL) == [False, False, False, False, True, False]
    assert rig.look("error") is None
    rig.assert_counted("purged", 1)


def test_purge_failed_takes_all_that_is_buried_under_an_id_and_not_what_waits(rig: Rig) -> None:
    for _ in range(2):
        rig.bury("a")
        rig.advance(10)
    rig.send("a")
    assert rig.broker.queue.purge_failed(["a", "a"]) == [True, False]
    assert rig.states("a") == [State.READY]
    rig.assert_counted("purged", 2)


def test_purge_leaves_a_running_message_of_the_same_id(rig: Rig) -> None:
    rig.bury("a")
    rig.send("a")
    claimed = rig.claim_one()
    assert rig.broker.queue.purge_failed(["a"]) == [True]
    assert rig.broker.queue.failed(10) == []
    assert rig.settle(claimed, SettleAction.FINISH)


def test_full_batches_by_id_over_many_sets(rig: Rig) -> None:
    many = [f"{n}" for n in range(BATCH)]
    for n, id in enumerate(many):
        if n < 60:
            rig.send(id, key=f"k{n}")
    rig.send(*many[60:])
    assert rig.broker.queue.reschedule(many, delay_ms=HOUR) == [True] * BATCH
    assert rig.broker.queue.cancel(many) == [True] * BATCH
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).reclaimed == 0
