"""Slots that are handed on in a process: to whom, for how long, and what becomes of those that wait in vain."""

from collections import deque
from time import monotonic

import pytest

from django_delayq.brokers.base import Ask, Claimed, Header
from django_delayq.limits import Limits
from django_delayq.worker.heirs import give_up, hand_on, line_up
from django_delayq.worker.lanes import Lane, Lease, take_paused, take_unstarted
from tests.worker.rig import make_handler


def ask_of(id: str, value: str = "", interval_us: int | None = None) -> Ask:
    return Ask("k", value, sum(id.encode()), 1, interval_us)


def lease_in(lane: Lane, id: str, *, at_most_once: bool = False) -> Lease:
    now = monotonic()
    return Lease(Claimed(id, 1, 0, Header("default", "k", at_most_once), b"null"), lane, now, now + 60, 0.0)


@pytest.fixture
def lane() -> Lane:
    """Of a handler that is fast."""
    handler = make_handler(lambda message: None, limits=Limits(max_concurrency=1, concurrency_key="{}"))
    return Lane(handler, [("default", "k")], concurrency=4, mean_s=0.005)


@pytest.fixture
def holder(lane: Lane) -> Lease:
    """One that runs, with the slot of the value x."""
    holder = lease_in(lane, "holder")
    holder.ask, holder.hand_on_until = ask_of("holder", "x"), monotonic() + 60
    return holder


def wait_for(holder: Lease, *ids: str) -> list[Lease]:
    """Those wait for its slot."""
    heirs = [lease_in(holder.lane, id) for id in ids]
    assert all(line_up(heir, ask_of(id, "x"), [holder]) for heir, id in zip(heirs, ids, strict=True))
    return heirs


def end(lease: Lease) -> list[Lease]:
    lease.ended = True
    return hand_on(lease)


def test_a_slot_is_handed_on_from_each_to_the_next_in_their_order(lane: Lane, holder: Lease) -> None:
    slot, (first, second) = holder.ask, wait_for(holder, "a", "b")
    assert not lane.leases
    for ending, heir in [(holder, first), (first, second)]:
        assert end(ending) == []
        assert lane.leases.pop() is heir
        assert (give_up(ending), heir.ask) == (None, slot)
        assert heir.asks_for is not None  # by which its claim, which may still deal out, knows that it was started here
    assert end(second) == []
    assert give_up(second) == slot


def test_a_slot_that_is_not_given_back_yet_is_taken_over_at_once(lane: Lane, holder: Lease) -> None:
    slot, late = holder.ask, lease_in(lane, "a")
    end(holder)
    assert line_up(late, ask_of("a", "x"), [holder])
    assert (late.ask, late.asks_for, list(lane.heirs)) == (slot, None, [])
    assert give_up(holder) is None
    end(late)
    give_up(late)
    assert not line_up(lease_in(lane, "b"), ask_of("b", "x"), [holder, late])


def test_nobody_waits_for_a_slot_of_another_value(lane: Lane, holder: Lease) -> None:
    assert not line_up(lease_in(lane, "a"), ask_of("a", "y"), [holder])


def test_who_waits_for_its_turn_or_must_not_start_twice_waits_for_no_slot(lane: Lane, holder: Lease) -> None:
    assert not line_up(lease_in(lane, "a"), ask_of("a", "x", interval_us=1), [holder])
    assert not line_up(lease_in(lane, "a", at_most_once=True), ask_of("a", "x"), [holder])


def test_no_more_wait_than_are_a_moments_work(lane: Lane, holder: Lease) -> None:
    wait_for(holder, "a", "b", "c")  # four of 5 ms, with the one that runs
    assert not line_up(lease_in(lane, "d"), ask_of("d", "x"), [holder])


@pytest.mark.parametrize("why", ["time", "lease"])
def test_those_that_wait_for_one_that_may_not_hand_on_are_given_back(lane: Lane, holder: Lease, why: str) -> None:
    heirs = wait_for(holder, "a", "b")
    if why == "time":
        holder.hand_on_until = 0
    else:
        holder.lost = True
    assert end(holder) == heirs
    assert not lane.heirs
    assert not lane.leases
    assert give_up(holder) == ask_of("holder", "x")


def test_what_waits_for_a_slot_is_given_back_like_all_that_no_hand_has_started(lane: Lane, holder: Lease) -> None:
    heirs = wait_for(holder, "a", "b")
    assert take_unstarted(lane, holder.claimed_at) == []
    assert take_unstarted(lane, monotonic()) == heirs
    lane.heirs = deque(heirs)
    assert take_paused(lane, lambda queue, key: key == "k") == heirs
