"""Lengths of time: exact to the millisecond, rounded up, and refused with the value and the fix."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from django_delayq.support.units import LONGEST_MS, to_ms, to_text


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        (0, 0),
        (90, 90_000),
        (0.001, 1),
        (1.1, 1_100),
        (timedelta(minutes=30), 1_800_000),
        ("500ms", 500),
        ("1.1s", 1_100),
        ("30m", 1_800_000),
        ("2h30m", 9_000_000),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
        (" 5s ", 5_000),
        (timedelta(days=36_600), LONGEST_MS),
    ],
)
def test_every_way_to_write_a_length(value: Any, milliseconds: int) -> None:
    assert to_ms(value, "delay") == milliseconds


@pytest.mark.parametrize("value", [timedelta(microseconds=1), 0.0001, "0.01ms"])
def test_a_part_of_a_millisecond_counts_as_a_whole_one(value: Any) -> None:
    assert to_ms(value, "delay") == 1


@given(st.integers(min_value=0, max_value=LONGEST_MS))
@example(274_877_906_943)  # as seconds, a float whose thousandfold is off by more than rounding
def test_whole_milliseconds_survive_in_every_form(milliseconds: int) -> None:
    assert to_ms(timedelta(milliseconds=milliseconds), "delay") == milliseconds
    assert to_ms(f"{milliseconds}ms", "delay") == milliseconds
    assert to_ms(f"{milliseconds // 1000}.{milliseconds % 1000:03}s", "delay") == milliseconds
    assert to_ms(milliseconds / 1000, "delay") == milliseconds


@pytest.mark.parametrize(
    "value",
    [-1, -1e-9, -1e306, timedelta(microseconds=-1), "-5s", " -1h30m", "-0.1ms"],
)
def test_a_negative_length_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^delay=.* is too short; give 0 or more\.$"):
        to_ms(value, "delay")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"^delay=.* is not finite; give "):
        to_ms(value, "delay")


@pytest.mark.parametrize("value", [10**40, 1e306, "9" * 400 + "d", timedelta(days=36_600, microseconds=1)])
def test_over_100_years_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^delay=.* is over 100 years; give less\.$"):
        to_ms(value, "delay")


@pytest.mark.parametrize("value", [10**4000, -(10**4000), "9" * 4000 + "d", "x" * 4000, ["x" * 4000]])
def test_a_huge_value_is_shown_cut(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^delay=.*\.\.\.") as raised:
        to_ms(value, "delay")
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize("value", ["", "5", "m", "1h 5m", "--5m", "-", "5 minutes", "1y", "٣s"])
def test_text_that_is_no_length_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"is no length of time; write it like '500ms', '30m'"):
        to_ms(value, "delay")


@pytest.mark.parametrize("value", [True, None, [5], object])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"is no length of time; give seconds, a timedelta, or text"):
        to_ms(value, "delay")


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        *((0, "0ms"), (999, "999ms"), (999.6, "1s"), (1_500, "1.5s"), (59_940, "59.9s"), (59_990, "1m")),
        *((5_400_000, "1h30m"), (90_061_000, "1d1h"), (3_600_000, "1h")),
    ],
)
def test_lengths_are_shown_in_their_two_largest_units(milliseconds: float, text: str) -> None:
    assert to_text(milliseconds) == text
