"""How long one operation goes on trying, and what it says when its time is over."""

from types import SimpleNamespace

import pytest

from django_delayq.brokers.redis.client import TransientError, client, unavailable
from django_delayq.brokers.redis.client.client import RetryBudget
from django_delayq.core.errors import BrokerUnavailable


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of the monotonic clock, to be moved."""
    seconds = [100.0]
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    return seconds


def test_a_last_wait_that_its_own_end_cut_off_does_not_hide_what_the_server_said(clock: list[float]) -> None:
    some = RetryBudget(2.0, unavailable)
    assert some.pause_after(TransientError("READONLY")) > 0
    clock[0] += 2.0
    with pytest.raises(BrokerUnavailable, match="READONLY"):
        some.pause_after(TransientError("Timeout reading"))


def test_of_two_faults_in_time_the_later_is_told(clock: list[float]) -> None:
    some = RetryBudget(2.0, unavailable)
    some.pause_after(TransientError("LOADING"))
    clock[0] += 1.999
    with pytest.raises(BrokerUnavailable, match="READONLY"):
        some.pause_after(TransientError("READONLY"))


def test_the_first_wait_tells_its_own_end(clock: list[float]) -> None:
    some = RetryBudget(2.0, unavailable)
    clock[0] += 2.0
    with pytest.raises(BrokerUnavailable, match="Timeout reading"):
        some.pause_after(TransientError("Timeout reading"))
