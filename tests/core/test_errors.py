"""What a handler raises to steer its message, and what a failed send says."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from django_delayq.core.errors import Bury, DelayqError, Retry, SendError, Snooze, UnknownKey


def test_steering_delays_are_milliseconds() -> None:
    assert (Retry("2m").delay_ms, Retry().delay_ms, Snooze(1.5).delay_ms) == (120_000, None, 1_500)


def test_steering_takes_an_instant_in_place_of_a_delay() -> None:
    at = datetime(2027, 1, 1, microsecond=1, tzinfo=UTC)
    at_ms = 1_798_761_600_001  # rounded up: never early
    for one in (Retry(at=at), Snooze(at=at)):
        assert (one.at_ms, one.delay_ms, one.delay_from(at_ms - 7), one.delay_from(at_ms + 7)) == (at_ms, None, 7, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Snooze(), "Snooze needs a time"),
        (lambda: Retry("1m", at=datetime.now(UTC)), "^Retry has delay='1m' and at=.*; give one of them"),
        (lambda: Retry(at=datetime(2027, 1, 1)), r"^Retry at=.* is naive; give django\.utils\.timezone\.make_aware"),
        (lambda: Snooze(at="soon"), "^Snooze at='soon' is str; give an aware datetime"),  # type: ignore[arg-type]
        (lambda: Snooze(at=datetime(2999, 1, 1, tzinfo=UTC)), "over 100 years from now"),
    ],
)
def test_a_wrong_instant_names_the_value_and_the_fix(make: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_steering_keeps_its_reason() -> None:
    assert [str(error) for error in (Retry(reason="busy"), Snooze("1s", "closed"), Bury("wrong"))] == [
        "busy",
        "closed",
        "wrong",
    ]


def test_a_wrong_delay_names_who_asked_for_it() -> None:
    with pytest.raises(ValueError, match=r"^Snooze delay='soon'"):
        Snooze("soon")


def test_steering_passes_by_a_handlers_net_for_our_errors() -> None:
    assert not issubclass(Retry, DelayqError)


def test_a_failed_send_says_how_far_it_came() -> None:
    error = SendError("gone", accepted=2, unknown=("c",))
    assert (str(error), error.accepted, error.unknown) == ("gone", 2, ("c",))


def test_an_unknown_key_is_a_failed_look_up() -> None:
    assert issubclass(UnknownKey, LookupError)
