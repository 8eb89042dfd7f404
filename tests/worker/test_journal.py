"""The journal of a worker process: what its supervisor reads there once it is dead."""

import os

import pytest

from django_delayq.brokers.base import Claimed, Header, PermitRequest, SettleAction
from django_delayq.core import transitions
from django_delayq.core.transitions import Failure, Span
from django_delayq.worker.leases import Lease
from django_delayq.worker.process import journal as module
from django_delayq.worker.process.journal import Journal, JournalReader, open_memory
from tests.worker.rig import make_handler

HANDLER = make_handler(lambda message: None)


class Pair:
    """Both sides of a journal."""

    def __init__(self) -> None:
        fd = open_memory()
        self.writer, self.reader = Journal(fd, "host:1:abc"), JournalReader(fd)
        os.close(fd)

    @property
    def left(self) -> dict[str, str]:
        """Return what became of each message that is held."""
        return {
            one.leased.claimed.id: one.transition.action.value if one.transition else "runs" if one.runs else "waits"
            for one in self.reader.held()
        }


@pytest.fixture
def pair() -> Pair:
    return Pair()


def lease(id: str, *, history: str = "", token: int = 7) -> Lease:
    claimed = Claimed(id, token, 123, Header("default", "k", tag="t"), b"secret", 1, 2, "5", history, 99, "w")
    return Lease(claimed, HANDLER, 0.0, 1.0, 12.5)


def test_a_new_journal_holds_nothing(pair: Pair) -> None:
    reader = pair.reader
    assert (reader.name, reader.held(), reader.holds_any) == ("host:1:abc", [], False)
    assert (reader.beat_at, reader.alive_at, reader.deadline, reader.started) == (0, 0, 0, 0)


def test_it_tells_what_waits_what_runs_and_how_what_ended_ended(pair: Pair) -> None:
    waits, runs, ended, over = (lease(id) for id in ("waits", "runs", "ended", "over"))
    writer = pair.writer
    writer.lease([waits, runs])
    writer.lease([ended, over])
    for one in (runs, ended, over):
        one.started_at = 3.5
        writer.start(one, 9.0)
    for one in (ended, over):
        writer.end(one, transitions.finish(one.claimed))
    writer.forget([over])
    assert pair.left == {"waits": "waits", "runs": "runs", "ended": "finish"}
    assert (pair.reader.holds_any, pair.reader.started) == (True, 3)
    held = pair.reader.held()[1]
    assert held.leased.clock_ms == 12.5
    assert held.leased.claimed == Claimed("runs", 7, 123, Header("default", "k", tag="t"), b"", 1, 2, "5", "", 99, "w")
    assert held.started is not None
    assert (held.started.at, held.started.deadline) == (3.5, 9.0)
    writer.forget([waits, runs, ended])
    assert (pair.left, pair.reader.holds_any) == ({}, False)


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("span", [Span(1_700_000_000_000, 1_700_000_000_025), Span(3), Span()])
def test_an_end_is_read_as_it_was_written(pair: Pair, span: Span, is_written: bool) -> None:
    finished, buried = lease("finished"), lease("buried")
    ends = {
        finished: transitions.finish(finished.claimed, span, is_written=is_written),
        buried: transitions.bury(buried.claimed, Failure("no such order", "détail"), span, failed=True),
    }
    pair.writer.lease(list(ends))
    for one, end in ends.items():
        pair.writer.start(one, 0.0)
        pair.writer.end(one, end)
    assert [held.transition for held in pair.reader.held()] == list(ends.values())


def test_two_leases_of_one_message_are_told_apart(pair: Pair) -> None:
    old, new = lease("a", token=1), lease("a", token=2)
    pair.writer.lease([old, new])
    pair.writer.forget([old])
    assert [one.leased.claimed.token for one in pair.reader.held()] == [2]


def test_the_permit_of_what_runs_is_known(pair: Pair) -> None:
    one = lease("a")
    pair.writer.lease([one])
    one.permit_request = PermitRequest("k", "value", 5, 1)
    pair.writer.start(one, 0.0)
    (held,) = pair.reader.held()
    assert held.started is not None
    assert held.started.permit_request == one.permit_request


def test_the_deadline_is_that_of_the_first_to_overrun(pair: Pair) -> None:
    first, second, own = (lease(id) for id in ("first", "second", "own"))
    pair.writer.lease([first, second, own])
    pair.writer.start(second, 9.0)
    pair.writer.start(own, 0.0)
    assert pair.reader.deadline == 9
    pair.writer.start(first, 5.0)
    assert pair.reader.deadline == 5
    pair.writer.end(first, transitions.finish(first.claimed))
    assert pair.reader.deadline == 9
    pair.writer.forget([second])
    assert pair.reader.deadline == 0


def test_what_is_held_for_a_process_is_what_it_had_started_by_then(pair: Pair) -> None:
    before, after, waits = (lease(id) for id in ("before", "after", "waits"))
    pair.writer.lease([before, after, waits])
    pair.writer.start(before, 0.0)
    assert pair.writer.held_until(before) == 0
    pair.reader.hold(pair.reader.started, 50.0)
    pair.writer.start(after, 0.0)
    assert [pair.writer.held_until(one) for one in (before, after, waits)] == [50, 0, 0]
    pair.reader.hold(1, 60.0)
    assert [pair.writer.held_until(one) for one in (before, after)] == [60, 0]
    pair.reader.hold(2, 70.0)
    assert [pair.writer.held_until(one) for one in (before, after, waits)] == [70, 70, 0]
    pair.writer.forget([before])
    assert pair.writer.held_until(before) == 0


def test_what_was_left_out_is_not_held_for_the_process(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HALF", 4_096)
    monkeypatch.setattr(module, "_LEAST", 4_096)
    many = [lease(f"{number}", history=" " * 500) for number in range(1_000)]
    pair.writer.lease(many)
    for one in (many[0], many[-1]):
        pair.writer.start(one, 0.0)
    pair.reader.hold(2, 50.0)
    assert [pair.writer.held_until(one) for one in (many[0], many[-1])] == [50, 0]


def test_it_goes_on_for_ever_and_keeps_what_is_held(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST", 4_096)
    kept = lease("kept", history="[" + " " * 3_000 + "]")
    pair.writer.lease([kept])
    pair.writer.start(kept, 0.0)
    for number in range(10_000):
        one = lease(f"{number}")
        pair.writer.lease([one])
        pair.writer.start(one, 0.0)
        assert len(pair.reader.held()) == 2
        pair.writer.end(one, transitions.finish(one.claimed))
        pair.writer.forget([one])
    assert pair.left == {"kept": "runs"}
    assert pair.reader.held()[0].leased.claimed.history == kept.claimed.history


def test_what_finds_no_place_is_left_out_and_does_no_harm(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HALF", 4_096)
    monkeypatch.setattr(module, "_LEAST", 4_096)
    many = [lease(f"{number}", history=" " * 500) for number in range(1_000)]
    pair.writer.lease(many)
    pair.writer.start(many[-1], 0.0)
    assert 0 < len(pair.reader.held()) < 20
    pair.writer.forget(many)
    one = lease("one")
    pair.writer.lease([one])
    assert pair.left == {"one": "waits"}


def test_a_half_written_note_is_not_read(pair: Pair) -> None:
    one, two = lease("one"), lease("two")
    pair.writer.lease([one])
    end = pair.writer._end
    pair.writer.lease([two])
    pair.writer._put(module._END, module._WHOLE, end)  # killed before the last step
    assert pair.left == {"one": "waits"}


def test_counts_are_seen_as_they_are_made(pair: Pair) -> None:
    counts = pair.writer.counts()
    counts[SettleAction.FINISH] += 2
    counts[SettleAction.BURY] += 1
    assert pair.reader.counts == {SettleAction.FINISH: 2, SettleAction.BURY: 1}
