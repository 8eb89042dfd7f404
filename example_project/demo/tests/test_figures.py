"""Tests of what the demo counts as early, lost and doubled, so that its exit code can be believed."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from example_project.demo.figures import Figures, count, differences_to
from example_project.demo.promises import Promises
from example_project.shop.models import Run

DUE = datetime(2026, 1, 1, tzinfo=UTC)
KILLED, OTHER = 11, 12


def run(
    id: str, outcome: Run.Outcome = Run.Outcome.FINISHED, late_ms: float = 1, attempt: int = 1, pid: int = OTHER
) -> Run:
    started_at = DUE + timedelta(milliseconds=late_ms)
    ended_at = None if outcome == Run.Outcome.RUNNING else started_at
    times = {"due_at": DUE, "started_at": started_at, "ended_at": ended_at}
    return Run(message_id=id, outcome=outcome, attempt=attempt, worker_pid=pid, **times)


def count_runs(
    *runs: Run, promised: str = "a", stopped: Sequence[tuple[list[str], int]] = (), buried: str = ""
) -> Figures:
    """Return the figures of these runs. Each character of `promised` and `buried` is an id."""
    promises = Promises(due=dict.fromkeys(promised, DUE), stopped=list(stopped))
    return count(promises, runs, set(buried), KILLED)


def test_each_message_run_once_and_on_time_is_kept() -> None:
    figures = count_runs(run("a"), run("b"), promised="ab")
    assert (figures.sent, figures.run, figures.is_kept) == (2, 2, True)


def test_a_start_before_the_due_time_is_early() -> None:
    figures = count_runs(run("a", late_ms=-0.1))
    assert (figures.early, figures.is_kept) == (1, False)


def test_a_start_before_the_time_promised_is_early_even_where_the_message_says_it_was_due() -> None:
    early = run("a")
    early.due_at = DUE - timedelta(seconds=1)
    early.started_at = DUE - timedelta(milliseconds=1)
    assert count_runs(early).early == 1


def test_a_message_without_an_end_is_lost() -> None:
    figures = count_runs(run("a"), run("b", outcome=Run.Outcome.RUNNING), promised="abc")
    assert (figures.lost, figures.is_kept) == (2, False)


def test_a_buried_message_is_not_lost() -> None:
    figures = count_runs(run("a", outcome=Run.Outcome.FAILED), buried="a")
    assert (figures.error, figures.lost, figures.is_kept) == (1, 0, True)


def test_a_stopped_message_is_cancelled_and_not_lost() -> None:
    figures = count_runs(run("a"), promised="abc", stopped=[(["a", "b", "c"], 2)])
    assert (figures.cancelled, figures.lost, figures.is_kept) == (2, 0, True)


@pytest.mark.parametrize("stopped", [0, 2])
def test_a_message_that_vanished_without_being_stopped_or_ran_though_stopped_breaks_the_promise(stopped: int) -> None:
    assert not count_runs(run("a"), promised="ab", stopped=[(["a", "b"], stopped)]).is_kept


def test_a_message_that_finished_twice_is_doubled() -> None:
    figures = count_runs(run("a"), run("a"))
    assert (figures.doubled, figures.is_kept) == (1, False)


def test_an_id_of_which_nothing_was_promised_may_finish_often_and_each_run_is_a_message() -> None:
    figures = count_runs(run("a"), run("p"), run("p"))
    assert (figures.sent, figures.run, figures.doubled, figures.is_kept) == (3, 3, 0, True)


def test_each_run_of_such_an_id_counts_also_of_the_killed_worker() -> None:
    cut_off = run("p", outcome=Run.Outcome.RUNNING, pid=KILLED)
    figures = count_runs(run("a"), run("p", pid=KILLED), cut_off, run("p"))
    assert (figures.sent, figures.run, figures.taken_over, figures.is_kept) == (3, 3, 0, True)


def test_what_the_killed_worker_had_just_finished_is_taken_over_and_not_doubled() -> None:
    """It was killed between the handler's end and its settlement."""
    figures = count_runs(run("a", pid=KILLED), run("a"))
    assert (figures.run, figures.taken_over, figures.doubled, figures.is_kept) == (1, 1, 0, True)


def test_what_the_killed_worker_had_finished_long_before_and_another_ran_again_is_doubled() -> None:
    figures = count_runs(run("a", pid=KILLED), run("b", pid=KILLED, late_ms=2_000), run("a"), promised="ab")
    assert (figures.taken_over, figures.doubled, figures.is_kept) == (0, 1, False)


def test_a_run_cut_off_by_the_kill_and_finished_by_the_other_worker_is_taken_over_and_not_doubled() -> None:
    figures = count_runs(run("a", outcome=Run.Outcome.RUNNING, pid=KILLED), run("a"))
    assert (figures.taken_over, figures.doubled, figures.is_kept) == (1, 0, True)


def test_what_the_killed_worker_had_finished_before_is_not_taken_over() -> None:
    assert count_runs(run("a", pid=KILLED)).taken_over == 0


def test_a_second_attempt_is_a_retry() -> None:
    figures = count_runs(run("a", outcome=Run.Outcome.FAILED), run("a", attempt=2))
    assert (figures.retried, figures.run, figures.is_kept) == (1, 1, True)


def test_lateness_is_given_in_milliseconds_as_the_least_value_that_the_percentage_does_not_exceed() -> None:
    figures = count_runs(*[run(str(ms), late_ms=ms) for ms in range(1, 10)], promised="123456789")
    assert (figures.lateness_p50, figures.lateness_p95, figures.lateness_p99) == (5, 9, 9)


@pytest.mark.parametrize(
    ("late_ms", "promised", "is_only_late"),
    [(1_500, "a", True), (500, "a", False), (1_500, "ab", False), (-1_500, "a", False)],
    ids=["late", "on time", "late, and one is lost", "early"],
)
def test_lateness_is_excused_where_nothing_else_was_wrong(late_ms: float, promised: str, is_only_late: bool) -> None:
    assert count_runs(run("a", late_ms=late_ms), promised=promised).is_only_late is is_only_late


@pytest.mark.parametrize("name", ["sent", "finished", "cancelled"])
def test_a_total_of_the_broker_that_is_not_what_the_demo_counted_is_told(name: str) -> None:
    figures = count_runs(run("a"), promised="ab", stopped=[(["b"], 1)])
    totals = {"sent": 2, "finished": 1, "cancelled": 1}
    assert differences_to(figures, totals) == []
    assert differences_to(figures, totals | {name: 7})[0].endswith(f"{name}, the broker 7")
