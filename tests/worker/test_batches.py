"""When the batch of a child is filled up, so that the child never waits for its worker."""

from collections.abc import Callable
from time import monotonic

import pytest

from django_delayq.brokers.base import Claimed, Header
from django_delayq.core import transitions
from django_delayq.core.history import NOTHING, Ended, PastAttempt, add as add_attempt, read
from django_delayq.core.transitions import Failure, Policy, Span, Transition
from django_delayq.worker import batches
from django_delayq.worker.batches import Batch
from django_delayq.worker.frames import Report
from django_delayq.worker.leases import Leases
from django_delayq.worker.outage_log import OutageLog
from django_delayq.worker.prefetch import MAX_PER_SLOT, Lease, PrefetchBuffer
from django_delayq.worker.settler import Settler
from django_delayq.worker.turns import MOST_BYTES, Turns
from tests.worker.rig import Rig, make_handler

MakeTurns = Callable[..., Turns]


@pytest.fixture
def make_turns(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> MakeTurns:
    """Of a machine that is as fast as can be."""
    for name in ("RUN_S", "STAY_S", "SLOW_S"):
        monkeypatch.setattr(batches, name, 3_600.0)
    leases = Leases(rig.broker, 15_000, outage_log := OutageLog())

    def make(*, may_stay: bool = True) -> Turns:
        settler = Settler(rig.broker, leases, outage_log)
        return Turns(leases, settler, lambda: None, lambda buffer: None, lambda buffer: may_stay)

    return make


def add(buffer: PrefetchBuffer, *ids: int, once: bool = False, body: bytes = b"null") -> None:
    for id in ids:
        claimed = Claimed(f"{id}", 1, 0, Header("default", "k", at_most_once=once), body)
        buffer.leases.append(Lease(claimed, buffer, 0.0, float("inf"), 0.0))


def begun(turns: Turns) -> tuple[PrefetchBuffer, Batch]:
    """A lane of 200, and a batch of it that a child has begun."""
    buffer = PrefetchBuffer(make_handler(lambda message: None), [("default", "k")], 1, active=1, mean_s=0.000_1)
    add(buffer, *range(200))
    batch = Batch(buffer, turns, 1)
    batch.fill(1_000)
    assert len(batch.left) == MAX_PER_SLOT
    batch.begin(monotonic(), lambda: None)
    assert batch.told(batch.left).ring_at == MAX_PER_SLOT // 4
    return buffer, batch


def run_all_but(batch: Batch, left: int) -> None:
    while len(batch.left) > left:
        batch.note(Report(transitions.release(batch.left[0].claimed), monotonic(), monotonic()))


def test_a_child_is_not_told_the_history_and_its_answer_is_added_to_it(make_turns: MakeTurns) -> None:
    past = add_attempt(NOTHING, PastAttempt(1, 1, 2, "w0", Ended.FAILED, "first", "long " * 1_000))
    buffer = PrefetchBuffer(make_handler(lambda message: None), [("default", "k")], 1, active=1)
    claimed = Claimed("a", 1, 0, Header("default", "k"), b"null", failures=1, history=past, worker="w1")
    buffer.leases.append(Lease(claimed, buffer, 0.0, float("inf"), 0.0))
    turns = make_turns()
    ended: list[Transition] = []
    turns._settler.add = lambda lease, settlement, urgent: ended.append(settlement)  # type: ignore[method-assign,misc,assignment]
    batch = Batch(buffer, turns, 1)
    batch.fill(1)
    batch.begin(monotonic(), lambda: None)
    (handed,) = batch.told(batch.left).batch
    assert handed.claimed.history == ""
    failure = Failure("second", "Traceback")
    answer = transitions.fail(handed.claimed, failure, Policy(), Span(3, 4), lambda _attempt: 60)
    batch.note(Report(answer, monotonic(), monotonic()))
    (transition,) = ended
    assert transition.history is not None
    assert [(each.attempt, each.error, each.worker) for each in read(transition.history)] == [
        (1, "first", "w0"),
        (2, "second", "w1"),
    ]


LOW = MAX_PER_SLOT // 4 + 1
"""What is left when the child rings: one runs."""


def test_a_batch_is_filled_up_before_its_end(make_turns: MakeTurns) -> None:
    _, batch = begun(make_turns())
    run_all_but(batch, LOW + 1)
    assert batch.refill() == []
    run_all_but(batch, LOW)
    more = batch.refill()
    assert [lease.claimed.id for lease in more] == [f"{id}" for id in range(MAX_PER_SLOT, MAX_PER_SLOT * 2)]
    assert len(batch.left) == LOW + MAX_PER_SLOT
    batch.told(more)
    assert batch.refill() == []
    run_all_but(batch, LOW)
    assert len(batch.refill()) == MAX_PER_SLOT


def test_the_pace_of_a_batch_is_that_of_its_handlers_whatever_the_trips_take(make_turns: MakeTurns) -> None:
    _, batch = begun(make_turns())
    for id in range(3):
        batch.note(Report(transitions.release(batch.left[0].claimed), 100.0 * id, 100.0 * id + 2))
    assert (batch.ended, batch.seconds) == (3, 6.0)


def test_a_hand_that_another_lane_waits_for_takes_no_more(make_turns: MakeTurns) -> None:
    _, batch = begun(make_turns(may_stay=False))
    run_all_but(batch, LOW)
    assert batch.refill() == []


@pytest.mark.parametrize("name", ["RUN_S", "STAY_S"])
def test_nothing_more_is_taken_behind_a_slow_message_nor_for_ever(
    make_turns: MakeTurns, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(batches, name, 0.0)
    _, batch = begun(make_turns())
    run_all_but(batch, LOW)
    assert batch.refill() == []


def test_nothing_more_is_taken_once_it_was_asked_back(make_turns: MakeTurns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "SLOW_S", 0.0)
    _, batch = begun(make_turns())
    run_all_but(batch, LOW)
    assert batch.is_slow()
    assert not batch.is_slow()
    assert batch.refill() == []


def test_what_must_not_start_twice_is_not_taken_behind_others(make_turns: MakeTurns) -> None:
    buffer, batch = begun(make_turns())
    buffer.leases.clear()
    add(buffer, 1_000, once=True)
    run_all_but(batch, LOW)
    assert batch.refill() == []
    assert len(buffer.leases) == 1


def test_what_a_child_at_work_may_not_read_at_once_is_not_taken_behind_others(make_turns: MakeTurns) -> None:
    buffer, batch = begun(make_turns())
    buffer.leases.clear()
    add(buffer, 1_000, body=b"x" * MOST_BYTES)
    run_all_but(batch, LOW)
    assert batch.refill() == []
    assert len(buffer.leases) == 1


def test_what_is_given_back_is_told_from_what_was_added_meanwhile(make_turns: MakeTurns) -> None:
    buffer, batch = begun(make_turns())
    run_all_but(batch, LOW)
    unstarted = [lease.claimed.id for lease in batch.left][1:]
    waiting = len(buffer.leases)
    batch.refill()
    batch.note(Report(unstarted=unstarted))  # the child said so before it heard of more
    assert len(batch.left) == 1 + MAX_PER_SLOT
    assert len(buffer.leases) == waiting - MAX_PER_SLOT + len(unstarted)
    assert [lease.claimed.id for lease in buffer.leases][: len(unstarted)] == unstarted
    assert not {lease.claimed.id for lease in batch.left} & set(unstarted)


def test_what_is_given_back_counts_as_not_started_though_it_was_next(make_turns: MakeTurns) -> None:
    buffer, batch = begun(make_turns())
    run_all_but(batch, LOW)
    first, *unstarted = [lease.claimed for lease in batch.left]
    more = batch.refill()
    # Over its memory it said so before it heard of more, and gives that back once it does.
    batch.note(Report(transitions.release(first), 1.0, 2.0, [claimed.id for claimed in unstarted]))
    batch.note(Report(unstarted=[lease.claimed.id for lease in more]))
    assert not batch.left
    assert not any(lease.runs or lease.abandon for lease in buffer.leases)
