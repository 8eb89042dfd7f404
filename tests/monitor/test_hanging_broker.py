"""A look at a broker that hangs is given up."""

import threading

import pytest

from django_delayq.core.errors import BrokerRefused, BrokerUnavailable
from django_delayq.monitor.looking import within


@pytest.mark.parametrize("seconds", [None, 60])
def test_the_answer_is_handed_on_and_so_is_what_was_raised(seconds: float | None) -> None:
    def refuse() -> None:
        raise BrokerRefused("wrong password")

    assert within(seconds, lambda: 42) == 42
    with pytest.raises(BrokerRefused, match="wrong password"):
        within(seconds, refuse)


def test_who_gets_no_answer_goes_on() -> None:
    answers = threading.Event()
    with pytest.raises(BrokerUnavailable, match=r"no answer within 0\.01 s"):
        within(0.01, answers.wait)
    answers.set()
