"""What a handler raises to steer its message, and what a failed send says."""

import pytest

from django_delayq.core.errors import Bury, DelayqError, Retry, SendError, Snooze, UnknownKey


def test_steering_delays_are_milliseconds() -> None:
    assert (Retry("2m").delay_ms, Retry().delay_ms, Snooze(1.5).delay_ms) == (120_000, None, 1_500)


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
