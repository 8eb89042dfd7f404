"""Backoff: fixed, a list, exponential, or a function."""

import math
from typing import Any

import pytest

from django_delayq.core.retry import Exponential, backoff_ms, check_backoff

FAILURE = RuntimeError("no")


def test_a_fixed_wait_is_the_same_after_each_failure() -> None:
    assert [backoff_ms("10s", attempt, FAILURE) for attempt in (1, 2, 50)] == [10_000] * 3


def test_the_last_wait_of_a_list_repeats() -> None:
    assert [backoff_ms(["1s", 60, "1h"], attempt, FAILURE) for attempt in (1, 2, 3, 4)] == [
        1_000,
        60_000,
        3_600_000,
        3_600_000,
    ]


def test_a_function_gets_the_attempt_and_the_exception() -> None:
    assert backoff_ms(lambda attempt, error: attempt * len(str(error)), 3, FAILURE) == 6_000


def test_exponential_grows_up_to_its_limit() -> None:
    steady = Exponential(first="1s", factor=2, most="10s", jitter=0)
    assert [backoff_ms(steady, attempt, FAILURE) for attempt in (1, 2, 3, 4, 5, 10_000)] == [
        1_000,
        2_000,
        4_000,
        8_000,
        10_000,
        10_000,
    ]


@pytest.mark.parametrize("factor", [1e4, 1e308, math.inf])
def test_exponential_with_a_large_factor_stays_at_its_limit(factor: float) -> None:
    steep = Exponential(first="15s", factor=factor, most="1h", jitter=0)
    assert [backoff_ms(steep, attempt, FAILURE) for attempt in (1, 79, 10_000)] == [15_000, 3_600_000, 3_600_000]
    assert backoff_ms(Exponential(first=0, factor=factor), 10_000, FAILURE) == 0


def test_exponential_with_a_small_factor_reaches_its_limit() -> None:
    flat = Exponential(first="1s", factor=1.01, most="1h", jitter=0)
    assert backoff_ms(flat, 1_000, FAILURE) == 3_600_000


def test_jitter_spreads_around_the_steady_wait() -> None:
    spread = {backoff_ms(Exponential(first="10s", jitter=0.1), 1, FAILURE) for _ in range(200)}
    assert len(spread) > 100
    assert min(spread) >= 9_000
    assert max(spread) <= 11_001


@pytest.mark.parametrize("backoff", ["10s", 5, [1, "2m"], Exponential(), lambda attempt, error: 1, lambda *given: 1])
def test_usable_backoffs_pass_the_check(backoff: Any) -> None:
    check_backoff(backoff)
    assert backoff_ms(backoff, 1, FAILURE) > 0


@pytest.mark.parametrize("backoff", ["soon", -1, [], ["1s", "soon"], None, lambda attempt: 1, lambda *, n: 1])
def test_unusable_backoffs_are_refused(backoff: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="backoff="):
        check_backoff(backoff)


@pytest.mark.parametrize("wrong", [{"first": "soon"}, {"most": -1}, {"factor": 0.5}, {"jitter": 2}])
def test_exponential_names_the_field_that_is_wrong(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"^Exponential\.{name}="):
        Exponential(**wrong)
