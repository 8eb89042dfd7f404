"""What becomes of a message whose worker died, and of errors that grow old."""

import pytest

from django_delayq.brokers.base import BATCH, BuriedInfo, SettleAction
from django_delayq.core.message import State
from tests.brokers.conftest import IN_ONE_PART, WITHOUT_STORE, name
from tests.brokers.rig import LEASE_MS, OPTIONS, Rig, by_id, ids

HOUR = 3_600_000


def test_a_lease_is_not_reclaimed_before_its_end(rig: Rig) -> None:
    rig.send("a")
    rig.claim_one()
    rig.advance(LEASE_MS - 5_000)
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).reclaimed == 0
    assert rig.get("a").state is State.RUNNING


def test_a_lapsed_lease_is_ready_again_in_its_old_place(rig: Rig) -> None:
    rig.send("a")
    due_ms = rig.claim_one().due_ms
    rig.advance(LEASE_MS)
    aged = rig.get("a").due_ms
    assert aged <= due_ms
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).reclaimed == 1
    info = rig.get("a")
    assert (info.state, info.due_ms, info.crashes, info.failures) == (State.READY, aged, 1, 0)
    assert (info.holder, info.lease_end_ms) == ("", None)
    rig.assert_total("reclaimed", 1)


def test_upkeep_is_safe_at_any_time(rig: Rig) -> None:
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).next_lease_end_ms is None
    rig.send("waits", delay_ms=HOUR)
    rig.bury("buried")
    before = [rig.get("waits"), rig.get("buried")]
    upkept = rig.broker.queue.maintain(lease_ms=LEASE_MS)
    assert (upkept.reclaimed, len(upkept.buried), upkept.dropped, upkept.suspects_due) == (0, 0, 0, 0)
    assert [rig.get("waits"), rig.get("buried")] == before


@pytest.mark.parametrize(
    "rig", WITHOUT_STORE, ids=name, indirect=True
)  # with a store it is that of the alarm, a moment before that of the row
def test_the_next_lease_end_is_told(rig: Rig) -> None:
    rig.send("a")
    rig.claim_one()
    upkept = rig.broker.queue.maintain(lease_ms=LEASE_MS)
    assert upkept.next_lease_end_ms == rig.get("a").lease_end_ms


def test_two_crashes_make_a_suspect_that_only_claim_suspect_gives(rig: Rig) -> None:
    rig.send("a")
    rig.crash(times=1)
    assert not rig.get("a").suspect
    assert rig.claim_suspect() == []
    rig.claim_one()
    rig.advance(LEASE_MS)
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).suspects_due == 1
    info = rig.get("a")
    assert (info.state, info.suspect, info.crashes) == (State.READY, True, 2)
    assert rig.broker.queue.counts().suspects == 1
    assert rig.claim() == []
    (claimed,) = rig.claim_suspect()
    assert (claimed.id, claimed.crashes) == ("a", 2)
    assert rig.settle(claimed, SettleAction.FINISH)


def test_suspects_are_given_one_at_a_time_and_only_of_wanted_sets(rig: Rig) -> None:
    rig.send("a", "b")
    rig.crash(times=2)
    assert rig.claim_suspect(key="other") == []
    one, other = rig.claim_suspect(), rig.claim_suspect()
    assert (len(one), len(other)) == (1, 1)
    assert sorted(ids([*one, *other])) == ["a", "b"]
    assert rig.claim_suspect() == []


def test_the_third_crash_buries_when_its_own_child_died(rig: Rig) -> None:
    rig.send("a", body=b"1")
    rig.crash(times=2)
    rig.crash_child(rig.claim_suspect()[0])
    info = rig.get("a")
    assert (info.state, info.crashes, info.body) == (State.FAILED, 3, b"1")
    assert info.error == "killed its worker 3 times: its process died"
    assert rig.claim() == rig.claim_suspect() == []
    rig.assert_total("buried", 1)


def test_bystanders_of_a_poison_message_lose_no_attempt_and_are_not_buried(rig: Rig) -> None:
    bystanders = [f"bystander {n}" for n in range(5)]
    rig.send("poison", *bystanders)
    rig.crash(times=2)
    for _ in range(6):
        (claimed,) = rig.claim_suspect()
        if claimed.id == "poison":
            rig.crash_child(claimed)
        else:
            rig.settle(claimed, SettleAction.FINISH)
    assert rig.states("poison") == [State.FAILED]
    rig.assert_counted("finished", 5)
    rig.assert_total("buried", 1)


def test_a_suspect_whose_worker_is_killed_by_another_message_stays_one(rig: Rig) -> None:
    rig.send("bystander")
    rig.crash(times=6)
    info = rig.get("bystander")
    assert (info.state, info.crashes, info.suspect) == (State.READY, 2, True)


def test_the_death_of_a_child_charges_what_it_ran(rig: Rig) -> None:
    rig.send("a", "b")
    first, second = by_id(rig.claim())
    rig.crash_child(first)
    assert rig.settle(second, SettleAction.FINISH)
    info = rig.get("a")
    assert (info.state, info.crashes, info.failures, info.error) == (State.READY, 1, 0, "its process died")
    rig.crash_child(rig.claim_one())
    assert rig.get("a").suspect
    assert rig.claim() == []


def test_a_late_hand_charges_no_crash(rig: Rig) -> None:
    rig.send("a")
    late = rig.claim_one()
    rig.lapse()
    rig.claim_one()
    assert not rig.settle(late, SettleAction.CRASH, error="x")
    assert rig.get("a").crashes == 1


def test_a_suspect_that_fails_by_itself_is_none_any_more(rig: Rig) -> None:
    rig.send("a")
    rig.crash(times=2)
    rig.settle(rig.claim_suspect()[0], SettleAction.RETRY, error="x")
    rig.advance(1)
    assert [(claimed.id, claimed.crashes) for claimed in rig.claim()] == [("a", 0)]


def test_at_most_once_is_buried_at_its_first_lapse(rig: Rig) -> None:
    rig.send("a", at_most_once=True)
    rig.claim_one()
    rig.advance(LEASE_MS)
    (told,) = rig.broker.queue.maintain(lease_ms=LEASE_MS).buried
    info = rig.get("a")
    assert told == BuriedInfo("a", "q", "k", 0, info.error)
    assert info.state is State.FAILED
    assert "may not have started" in info.error


def test_at_most_once_is_buried_when_interrupted(rig: Rig) -> None:
    rig.send("a", at_most_once=True)
    rig.settle(rig.claim_one(), SettleAction.INTERRUPT)
    rig.lapse()
    assert rig.get("a").state is State.FAILED


def test_at_most_once_may_be_released_unstarted(rig: Rig) -> None:
    rig.send("a", at_most_once=True)
    rig.settle(rig.claim_one(), SettleAction.RELEASE)
    assert ids(rig.claim()) == ["a"]


def test_more_leases_than_one_upkeep_takes(rig: Rig) -> None:
    for part in range(3):
        rig.send(*(f"{part}-{n}" for n in range(BATCH)), key=f"k{part}")
        while rig.claim(BATCH, key=f"k{part}"):
            pass
    rig.advance(LEASE_MS)
    reclaimed = [rig.broker.queue.maintain(lease_ms=LEASE_MS).reclaimed for _ in range(3)]
    assert sum(reclaimed) == 3 * BATCH
    assert reclaimed[0] <= BATCH * rig.parts
    assert rig.broker.queue.counts().running == 0


@pytest.mark.parametrize("rig", WITHOUT_STORE, ids=name, indirect=True)  # a store has its own retention
def test_errors_are_kept_for_their_retention(rig: Rig) -> None:
    rig.bury("old")
    rig.advance(OPTIONS.error_retention // 2)
    rig.bury("young")
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).dropped == 0
    rig.advance(OPTIONS.error_retention // 2)
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).dropped == 1
    assert ids(rig.broker.queue.failed(10)) == ["young"]
    assert rig.look("old") is None
    rig.assert_counted("dropped", 1)


@pytest.mark.parametrize("rig", IN_ONE_PART, ids=name, indirect=True)  # a store has its own retention
def test_no_more_errors_are_kept_than_the_maximum(rig: Rig) -> None:
    for n in range(OPTIONS.error_max + 2):
        rig.bury(f"{n}")
        rig.advance(10)
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).dropped == 2
    assert ids(rig.broker.queue.failed(10)) == ["6", "5", "4", "3", "2"]
    assert rig.broker.queue.counts().error == OPTIONS.error_max
