"""The names of lanes: each says its queue and its priority, and no queue can be taken for a lane."""

import pytest
from hypothesis import given, strategies as st

from django_delayq.core.lanes import lane_of, lanes_in, new_lane, priority_of, queue_of
from django_delayq.core.requests import WorkerInfo, is_asked_for
from django_delayq.support.validation import check_queue

queues = st.text("ab^-1059ü ", min_size=1, max_size=10)
priorities = st.integers(-100, 100)


@given(queues, priorities)
def test_a_lane_has_the_queue_and_the_priority_that_it_was_named_after(queue: str, priority: int) -> None:
    if priority_of(queue):
        with pytest.raises(ValueError, match=r"is how the messages of a priority are named"):
            new_lane(queue, priority)
        return
    lane = new_lane(queue, priority)
    assert lane == lane_of(queue, priority) == check_queue(lane)
    assert (queue_of(lane), priority_of(lane)) == (queue, priority)


@pytest.mark.parametrize("queue", ["a^0", "a^05", "a^101", "a^-0", "^5", "a^", "a^5b", "5", "a^٥"])
def test_what_only_looks_like_a_lane_is_a_queue(queue: str) -> None:
    assert (queue_of(queue), priority_of(queue)) == (queue, 0)
    assert lanes_in([queue, "a^5", "a^5"]) == {"a^5"}


def test_a_worker_of_a_queue_is_asked_for_its_lanes_and_one_of_a_lane_for_that_alone() -> None:
    all_lanes, one = WorkerInfo("a", ["mail"], ["k"], 0, 0), WorkerInfo("b", ["mail^5"], ["k"], 0, 0)
    assert [is_asked_for(lane, "k", [all_lanes]) for lane in ("mail", "mail^5", "text^5")] == [True, True, False]
    assert [is_asked_for(lane, "k", [one]) for lane in ("mail", "mail^5", "mail^6")] == [False, True, False]
    assert not is_asked_for("mail^5", "other", [all_lanes, one])
