"""Lanes: whoever keeps the messages tells the workers of each one to which a message was sent."""

import threading

from django_delayq.brokers.base import SettleAction, WorkerInfo
from tests.brokers.rig import LEASE_MS, Rig

LONG_S = 60.0  # far longer than a test may take


def test_the_lanes_are_those_of_other_priorities_than_0_and_are_kept(rig: Rig) -> None:
    rig.send("a", queue="q")
    assert set(rig.broker.presence.lanes()) == set()
    rig.send("b", queue="q^5")
    rig.send("c", queue="q^5")
    rig.send("d", queue="ü^-100", key="ü")
    for claimed in rig.claim(queue="q^5"):
        assert claimed.header is not None
        assert claimed.header.queue == "q^5"
    assert set(rig.broker.presence.lanes()) == {"q^5", "ü^-100"}
    answer = rig.broker.presence.heartbeat(WorkerInfo("w", ["q"], ["k"], 0, 0))
    assert answer.lanes is None if rig.tells_of_all_pauses else set(answer.lanes or ()) == {"q^5", "ü^-100"}


def test_the_first_message_of_a_lane_ends_the_wait_of_workers_that_do_not_ask_for_it(rig: Rig) -> None:
    rig.broker.queue.claim([], lease_ms=LEASE_MS, worker="sleeper")
    rig.broker.queue.wait(0)  # where a new connection just woke it
    heard = rig.broker.presence.pause_version
    waiter = threading.Thread(target=rig.broker.queue.wait, args=(LONG_S,), daemon=True)
    waiter.start()
    rig.send("a", queue="q^5")
    waiter.join(LONG_S / 2)
    assert not waiter.is_alive()
    assert rig.broker.presence.pause_version > heard
    assert set(rig.broker.presence.lanes()) == {"q^5"}


def test_only_a_replacement_moves_what_waits_into_another_lane(rig: Rig) -> None:
    rig.send("a", queue="q", delay_ms=LEASE_MS)
    rig.send("a", queue="q^5", delay_ms=LEASE_MS)
    assert [count.pair[0] for count in rig.broker.queue.counts().waiting] == ["q"]
    rig.send("a", queue="q^5", delay_ms=LEASE_MS, on_conflict="replace")
    assert [count.pair[0] for count in rig.broker.queue.counts().waiting] == ["q^5"]
    assert rig.broker.queue.cancel(["a"]) == [True]


def test_what_is_rescheduled_or_rescued_stays_in_its_lane(rig: Rig) -> None:
    rig.send("a", queue="q^5", delay_ms=10 * LEASE_MS)
    assert rig.broker.queue.reschedule(["a"]) == [True]
    rig.advance(1)
    assert rig.settle(rig.claim_one(queue="q^5"), SettleAction.BURY, error="no good")
    assert rig.broker.queue.rescue(["a"]) == [True]
    rig.advance(1)
    assert rig.claim_one(queue="q^5").id == "a"
