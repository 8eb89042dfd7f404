"""What is counted of an attempt, and what the counts tell."""

import pytest

from django_delayq.core.figures import BOUNDS_MS, COUNTS, Figures, Quantiles
from django_delayq.core.transitions import SettleAction, Transition
from django_delayq.worker.figures import count, is_counted

DUE_MS = 1_000_000


def counted(*ends: Transition) -> Figures:
    """The counts of messages that were due at `DUE_MS`."""
    counts = [0] * len(COUNTS)
    for end in ends:
        count(counts, end, DUE_MS)
    return Figures(counts)


def end(action: SettleAction, *, late_ms: int | None = 0, ran_ms: int = 0, key: str = "k") -> Transition:
    """The end of an attempt; of one that did not start if it has no lateness."""
    if late_ms is None:
        return Transition("id", 1, "q", key, action)
    started_ms = DUE_MS + late_ms
    return Transition("id", 1, "q", key, action, started_ms=started_ms, ended_ms=started_ms + ran_ms)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (SettleAction.FINISH, {"finished", "attempts", "ended"}),
        (SettleAction.RETRY, {"failed", "retried", "attempts"}),
        (SettleAction.CRASH, {"failed", "retried", "attempts"}),
        (SettleAction.SNOOZE, {"snoozed", "attempts"}),
        (SettleAction.BURY, {"failed", "buried", "attempts", "ended"}),
    ],
)
def test_each_end_of_an_attempt_is_counted_once_as_what_it_is(action: SettleAction, expected: set[str]) -> None:
    seen = counted(end(action))
    names = ("finished", "failed", "retried", "snoozed", "buried", "attempts", "ended")
    assert {name: getattr(seen, name) for name in names} == {name: int(name in expected) for name in names}


def test_what_never_started_was_buried_without_an_attempt() -> None:
    seen = counted(end(SettleAction.BURY, late_ms=None))
    assert (seen.buried, seen.failed, seen.attempts, seen.ended) == (1, 0, 0, 0)


@pytest.mark.parametrize("action", [SettleAction.RETRY, SettleAction.CRASH])
def test_what_waits_again_without_a_start_was_no_attempt(action: SettleAction) -> None:
    """Such is a burial before the start that the database refuses: a retry takes its place."""
    seen = counted(end(SettleAction.FINISH), end(action, late_ms=None))
    assert (seen.retried, seen.failed, seen.attempts, seen.ended) == (0, 0, 1, 1)


@pytest.mark.parametrize("action", [SettleAction.RELEASE, SettleAction.INTERRUPT, SettleAction.LAPSE])
def test_a_lease_that_ends_without_the_attempt_is_not_counted(action: SettleAction) -> None:
    assert not is_counted(end(action))
    assert not is_counted(end(SettleAction.BURY, key=""))  # nobody can read whose it is
    assert is_counted(end(SettleAction.BURY))


def test_times_are_summed_and_counted_up_to_each_bound() -> None:
    times_ms = [0, 2, 3, BOUNDS_MS[-1], BOUNDS_MS[-1] + 1]
    seen = counted(*(end(SettleAction.FINISH, late_ms=ms, ran_ms=ms) for ms in times_ms))
    for times in (seen.run_times, seen.lateness):
        assert (times.total_ms, times.number) == (sum(times_ms), 5)
        assert [times.buckets[0], times.buckets[1], times.buckets[-2], times.buckets[-1]] == [2, 1, 1, 1]


def test_a_clock_that_was_set_back_counts_as_no_time() -> None:
    seen = counted(end(SettleAction.FINISH, late_ms=-5, ran_ms=-5))
    assert (seen.run_times.total_ms, seen.lateness.total_ms, seen.lateness.buckets[0]) == (0, 0, 1)


def test_quantiles_lie_inside_their_buckets() -> None:
    assert counted().lateness.quantiles is None
    some = [end(SettleAction.FINISH, late_ms=20)] * 90 + [end(SettleAction.FINISH, late_ms=400)] * 10
    quantiles = counted(*some).lateness.quantiles
    assert quantiles is not None
    assert 10 < quantiles.p50 <= 25
    assert 250 < quantiles.p95 < quantiles.p99 <= 1_000
    assert counted(end(SettleAction.FINISH, late_ms=10**9)).lateness.quantiles == Quantiles(*[BOUNDS_MS[-1]] * 3)


def test_figures_are_added_up_count_by_count() -> None:
    one, two = counted(end(SettleAction.FINISH)), counted(end(SettleAction.RETRY, ran_ms=7))
    assert Figures.sum([one, two]) == counted(end(SettleAction.FINISH), end(SettleAction.RETRY, ran_ms=7))
    assert Figures.sum([]) == counted()
