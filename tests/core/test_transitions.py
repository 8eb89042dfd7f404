"""What becomes of a message at each end of its lease is decided in one place, and needs no backend to be tested."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from django_delayq.core import transitions
from django_delayq.core.history import Ended, read
from django_delayq.core.message import State
from django_delayq.core.requests import Claimed, Header
from django_delayq.core.transitions import (
    LAPSED_AT_MOST_ONCE,
    MOVES,
    STATE_AFTER,
    Failure,
    Policy,
    SettleAction,
    Span,
    Transition,
)

CLAIMED = Claimed(
    "a", 7, 1_000, Header("q", "k"), b"1", failures=3, crashes=1, pk="5", history="[]", claimed_ms=1_500, worker="w"
)
SPAN = Span(2_000, 3_000)
FAILURE = Failure("ValueError: no", "Traceback", "ValueError in shop.f")
ONCE = Policy(at_most_once=True, max_attempts=1)
ALWAYS = Policy()

Row = tuple[SettleAction, int, int, int | None, str | None]


def row(transition: Transition) -> Row:
    """Return what it does: the action, failures, crashes, the delay and the error."""
    assert (transition.id, transition.token, transition.pk) == ("a", 7, "5")
    assert (transition.queue, transition.key) == ("q", "k")
    return transition.action, transition.failures, transition.crashes, transition.delay_ms, transition.error


def fail(policy: Policy, claimed: Claimed = CLAIMED) -> Transition:
    return transitions.fail(claimed, FAILURE, policy, SPAN, lambda attempt: transitions.Again(attempt * 10))


def retry(claimed: Claimed, failure: Failure, delay_ms: int, span: Span = transitions.UNSTARTED) -> Transition:
    return transitions.fail(claimed, failure, ALWAYS, span, lambda _attempt: transitions.Again(delay_ms))


@pytest.mark.parametrize(
    ("transition", "expected"),
    [
        (transitions.finish(CLAIMED, SPAN), (SettleAction.FINISH, 3, 1, None, None)),
        (retry(CLAIMED, FAILURE, 60, SPAN), (SettleAction.RETRY, 4, 0, 60, "ValueError: no")),
        (transitions.snooze(CLAIMED, 60, ALWAYS, SPAN), (SettleAction.SNOOZE, 3, 0, 60, None)),
        (transitions.release(CLAIMED), (SettleAction.RELEASE, 3, 1, None, None)),
        (transitions.release(CLAIMED, 60), (SettleAction.RELEASE, 3, 1, 60, None)),
        (transitions.interrupt(CLAIMED, ALWAYS), (SettleAction.INTERRUPT, 3, 1, None, None)),
        (transitions.crash(CLAIMED, "signal 9", ALWAYS, SPAN), (SettleAction.CRASH, 3, 2, None, "signal 9")),
        (transitions.bury(CLAIMED, FAILURE, SPAN), (SettleAction.BURY, 3, 1, None, "ValueError: no")),
        (transitions.bury(CLAIMED, FAILURE, SPAN, failed=True), (SettleAction.BURY, 4, 1, None, "ValueError: no")),
        (transitions.lapse(CLAIMED, 9, at_most_once=False), (SettleAction.LAPSE, 3, 2, None, None)),
        (transitions.lapse(CLAIMED, 9, at_most_once=True), (SettleAction.BURY, 3, 2, None, LAPSED_AT_MOST_ONCE)),
        (fail(ALWAYS), (SettleAction.RETRY, 4, 0, 40, "ValueError: no")),
        (fail(Policy(max_attempts=5)), (SettleAction.RETRY, 4, 0, 40, "ValueError: no")),
        (fail(Policy(max_attempts=4)), (SettleAction.BURY, 4, 1, None, "ValueError: no")),
        (fail(Policy(expires_at_ms=3_041)), (SettleAction.RETRY, 4, 0, 40, "ValueError: no")),
        (
            fail(Policy(expires_at_ms=3_040)),
            (SettleAction.BURY, 4, 1, None, "ValueError: no (the next try would be after it expires)"),
        ),
    ],
)
def test_each_end_has_its_row(transition: Transition, expected: Row) -> None:
    assert row(transition) == expected


@pytest.mark.parametrize(
    ("transition", "why"),
    [
        (fail(ONCE), "ValueError: no"),
        (transitions.snooze(CLAIMED, 60, ONCE, SPAN), "asked to snooze, but at_most_once never starts a second time"),
        (transitions.crash(CLAIMED, "signal 9", ONCE, SPAN), "signal 9; at_most_once: it may have run in part"),
        (transitions.crash_alone(CLAIMED, "signal 9", ONCE, SPAN), "signal 9; at_most_once: it may have run in part"),
        (
            transitions.interrupt(CLAIMED, ONCE, SPAN),
            "at_most_once: interrupted by the stop of its worker; it may have run in part",
        ),
        (transitions.lapse(CLAIMED, 9, at_most_once=True, interrupted=True), LAPSED_AT_MOST_ONCE),
    ],
)
def test_what_must_not_start_twice_never_waits_again(transition: Transition, why: str) -> None:
    assert (transition.state, transition.error) == (State.FAILED, why)


@pytest.mark.parametrize(
    ("claimed", "policy", "why"),
    [
        (CLAIMED, ONCE, "at_most_once: it was handed out before, and may have run in part"),
        (replace(CLAIMED, failures=0), ONCE, "at_most_once: it was handed out before, and may have run in part"),
        (replace(CLAIMED, failures=0, crashes=0), ONCE, None),
        (CLAIMED, Policy(max_attempts=3), "it has failed 3 times, and max_attempts is 3"),
        (CLAIMED, Policy(max_attempts=4), None),
        (CLAIMED, Policy(expires_at_ms=5_000), "expired 1s ago"),
        (CLAIMED, Policy(expires_at_ms=6_000), "expired 0ms ago"),
        (CLAIMED, Policy(expires_at_ms=6_001), None),
        (CLAIMED, ALWAYS, None),
    ],
)
def test_what_must_not_start_any_more_is_refused(claimed: Claimed, policy: Policy, why: str | None) -> None:
    transition = transitions.refuse(claimed, policy, 6_000)
    assert (transition.error if transition else None) == why
    assert transition is None or transition.state is State.FAILED


@pytest.mark.parametrize(("crashes", "then"), [(0, 1), (1, 2), (2, 2)])
def test_the_death_of_a_process_where_others_may_have_run_counts_a_crash_but_never_the_fatal_one(
    crashes: int, then: int
) -> None:
    transition = transitions.crash(replace(CLAIMED, crashes=crashes), "signal 9", ALWAYS, SPAN)
    assert row(transition) == (SettleAction.CRASH, 3, then, None, "signal 9")
    assert transition.is_suspect == (then == 2)


@pytest.mark.parametrize(
    ("crashes", "action"), [(0, SettleAction.CRASH), (1, SettleAction.CRASH), (2, SettleAction.BURY)]
)
def test_the_third_death_buries_a_message_that_ran_alone(crashes: int, action: SettleAction) -> None:
    transition = transitions.crash_alone(replace(CLAIMED, crashes=crashes), "signal 9", ALWAYS, SPAN)
    assert (transition.action, transition.crashes) == (action, crashes + 1)
    if action is SettleAction.BURY:
        assert transition.error == "killed its worker 3 times: signal 9"


@pytest.mark.parametrize(
    ("crashes", "interrupted", "then"), [(0, False, 1), (1, False, 2), (2, False, 2), (0, True, 0), (1, True, 1)]
)
def test_a_lapse_counts_a_crash_but_never_the_fatal_one_and_none_after_a_stop(
    crashes: int, interrupted: bool, then: int
) -> None:
    transition = transitions.lapse(replace(CLAIMED, crashes=crashes), 9, at_most_once=False, interrupted=interrupted)
    assert (transition.action, transition.crashes) == (SettleAction.LAPSE, then)
    assert transition.is_suspect == (then == 2)


@pytest.mark.parametrize(
    ("refused", "policy", "instead"),
    [
        (transitions.finish(CLAIMED, SPAN), ALWAYS, [(SettleAction.RETRY, "its finish is refused: no table")]),
        (
            fail(ALWAYS),
            Policy(max_attempts=5),
            [(SettleAction.RETRY, "ValueError: no (its retry is refused: no table)")],
        ),
        (
            fail(ALWAYS),
            Policy(max_attempts=4),
            [
                (SettleAction.BURY, "ValueError: no (its retry is refused: no table)"),
                (SettleAction.RETRY, "ValueError: no (its retry is refused: no table)"),
            ],
        ),
        (transitions.finish(CLAIMED, SPAN, is_written=True), ALWAYS, []),
        (transitions.release(CLAIMED), ALWAYS, []),
        (transitions.interrupt(CLAIMED, ALWAYS), ALWAYS, []),
    ],
)
def test_an_end_that_nobody_takes_counts_as_a_failure(
    refused: Transition, policy: Policy, instead: list[tuple[SettleAction, str]]
) -> None:
    tried = transitions.in_place_of(refused, CLAIMED, policy, "no table", lambda attempt: attempt * 10)
    assert [(one.action, one.error) for one in tried] == instead
    assert all((one.failures, one.started_ms, one.ended_ms) == (4, 2_000, 3_000) for one in tried)


@pytest.mark.parametrize(
    ("transition", "outcome"),
    [
        (retry(CLAIMED, FAILURE, 60, SPAN), Ended.FAILED),
        (transitions.snooze(CLAIMED, 60, ALWAYS, SPAN), Ended.SNOOZED),
        (transitions.crash(CLAIMED, "signal 9", ALWAYS, SPAN), Ended.CRASHED),
        (transitions.lapse(CLAIMED, 3_000, at_most_once=False), Ended.LOST),
        (transitions.lapse(CLAIMED, 3_000, at_most_once=False, interrupted=True), Ended.INTERRUPTED),
    ],
)
def test_who_waits_again_has_one_attempt_more_in_its_history(transition: Transition, outcome: Ended) -> None:
    assert transition.history is not None
    (past,) = read(transition.history)
    assert (past.attempt, past.ended, past.worker, past.outcome) == (4, 3_000, "w", outcome)
    assert past.started == (1_500 if transition.action is SettleAction.LAPSE else 2_000)


@pytest.mark.parametrize(
    "leave",
    [
        lambda claimed: transitions.finish(claimed, SPAN),
        lambda claimed: transitions.release(claimed, 60),
        lambda claimed: transitions.interrupt(claimed, ALWAYS, SPAN),
        lambda claimed: transitions.bury(claimed, FAILURE, SPAN),
        lambda claimed: retry(replace(claimed, history=""), FAILURE, 60, SPAN),
    ],
)
def test_what_adds_no_attempt_or_keeps_no_history_leaves_it_as_it_is(leave: Callable[[Claimed], Transition]) -> None:
    assert leave(CLAIMED).history is None


def test_no_text_that_is_kept_has_a_nul() -> None:
    failure = Failure("a\0b", "c\0d", "e\0f")
    buried = transitions.bury(CLAIMED, failure, SPAN)
    assert (buried.error, buried.detail, buried.fingerprint) == ("a\\x00b", "c\\x00d", "e\\x00f")
    retried = retry(CLAIMED, failure, 60, SPAN)
    assert (retried.error, retried.detail) == ("a\\x00b", "c\\x00d")
    assert "\\u0000" not in (retried.history or "")


def test_a_message_whose_header_is_not_ours_can_be_buried() -> None:
    transition = transitions.bury(replace(CLAIMED, header=None), FAILURE)
    assert (transition.queue, transition.key, transition.state) == ("", "", State.FAILED)


@pytest.mark.parametrize(
    ("transition", "words"),
    [
        (transitions.finish(CLAIMED), "finished"),
        (retry(CLAIMED, FAILURE, 60_000), "failed, runs again in 1m: ValueError: no"),
        (transitions.snooze(CLAIMED, 60_000, ALWAYS), "snoozes for 1m"),
        (transitions.crash(CLAIMED, "signal 9", ALWAYS), "crashed, runs again: signal 9"),
        (transitions.bury(CLAIMED, FAILURE), "failed for good: ValueError: no"),
    ],
)
def test_a_log_line_says_what_is_written(transition: Transition, words: str) -> None:
    assert transitions.describe(transition) == words


def test_every_action_is_a_legal_move_of_a_running_message() -> None:
    for action, state in STATE_AFTER.items():
        starts, ends = MOVES["reclaim" if action is SettleAction.LAPSE else action]
        assert State.RUNNING in starts
        assert state in ends or (state is State.PENDING and State.READY in ends)


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize(
    "transition",
    [
        transitions.finish(CLAIMED),
        transitions.release(CLAIMED),
        transitions.interrupt(CLAIMED, ALWAYS),
        transitions.interrupt(CLAIMED, ONCE),
    ],
)
def test_a_lease_is_interrupted_once_and_then_ends_as_any_other(transition: Transition, interrupted: bool) -> None:
    is_second = interrupted and transition.action is SettleAction.INTERRUPT
    assert transition.is_repeated(interrupted=interrupted) == is_second


def test_only_what_is_decided_of_a_lease_that_ran_out_names_its_end() -> None:
    lapses = [transitions.lapse(CLAIMED, 9, at_most_once=once) for once in (False, True)]
    assert [one.lease_until_ms for one in lapses] == [9, 9]
    assert transitions.finish(CLAIMED).lease_until_ms is None


def test_a_message_that_ran_out_and_cannot_be_read_is_buried() -> None:
    transition = transitions.lapse(replace(CLAIMED, header=None), 9, at_most_once=False)
    assert (transition.state, transition.error, transition.crashes) == (State.FAILED, transitions.UNREADABLE, 2)
