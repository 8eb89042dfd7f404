"""Starts of a rate that a worker takes ahead: few calls, and never more starts than the rate allows."""

import math

import pytest
from hypothesis import given, strategies as st

from django_delayq.brokers.base import Claimed, PermitRequest
from django_delayq.brokers.memory.limiter import MemoryLimiter
from django_delayq.core.limits import LEAST_WITHIN_US, Limits, check_limits
from django_delayq.worker import starts
from django_delayq.worker.leases import Lease
from django_delayq.worker.starts import StartBlock
from tests.worker.rig import make_handler

HANDLER = make_handler(lambda message: None)


class Times:
    """The limiter's clock and the monotonic one, in µs; a step moves the former alone."""

    def __init__(self) -> None:
        self.monotonic_us, self.step_us = 1_000_000_000, 1_700_000_000_000_000

    def monotonic(self) -> float:
        return self.monotonic_us / 1_000_000

    def clock_ms(self) -> float:
        return (self.monotonic_us + self.step_us) / 1000


class Taker:
    """A worker's starts of one value."""

    def __init__(self, times: Times, limiter: MemoryLimiter, limits: Limits) -> None:
        self.block = StartBlock()
        self.asked: list[PermitRequest] = []
        self._times, self._limiter, self._limits = times, limiter, limits

    def admit(self, count: int, call_us: int = 0, *, is_roomy: bool = False) -> list[Lease]:
        """Admit leases by a call that takes so long before the limiter answers. Return those that may start."""
        leases = [Lease(Claimed("m", 1, 0, None, b""), HANDLER, 0.0, math.inf, 0.0) for _ in range(count)]
        if not (rest := self.block.give(leases)):
            return leases
        request = self.block.request("k", self._limits, "a", len(rest), self._limits.ahead(is_roomy=is_roomy))
        self._times.monotonic_us += call_us
        (answer,) = self._limiter.acquire([request], lease_ms=1_000)
        self.asked.append(request)
        granted = request.starts if answer is None else answer.starts
        refused = self.block.fill(rest, granted, is_refused=answer is not None)
        return [lease for lease in leases if lease not in refused]


def limits_of(rate: str, burst: int) -> Limits:
    limits = check_limits(None, None, rate, "{}", burst)
    assert limits is not None
    return limits


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    monkeypatch.setattr(starts, "monotonic", times.monotonic)
    return times


def taker(times: Times, limits: Limits) -> Taker:
    return Taker(times, MemoryLimiter(times.clock_ms), limits)


def test_a_value_in_steady_use_is_asked_for_seldom(times: Times) -> None:
    worker = taker(times, limits_of("1000/s", 1_000))
    for _ in range(1_000):
        assert len(worker.admit(1)) == 1
        times.monotonic_us += 20_000
    assert len(worker.asked) < 100
    assert sum(request.starts for request in worker.asked) < 1.25 * 1_000


def test_the_first_message_of_a_value_and_one_that_comes_seldom_take_no_more_than_their_start(times: Times) -> None:
    worker = taker(times, limits_of("100/m", 50))
    for _ in range(5):
        assert len(worker.admit(1)) == 1
        times.monotonic_us += 2_100_000
    assert [request.starts for request in worker.asked] == [1] * 5


def test_a_value_in_use_is_asked_for_every_two_seconds(times: Times) -> None:
    worker = taker(times, limits_of("100/m", 200))
    for _ in range(40):
        assert len(worker.admit(1)) == 1
        times.monotonic_us += 500_000
    assert len(worker.asked) <= 11
    assert sum(request.starts for request in worker.asked) <= 1.25 * 40


def test_after_a_refusal_nothing_is_taken_ahead_for_a_while(times: Times) -> None:
    worker = taker(times, limits_of("100/m", 50))
    for count in (1, 1, 1):
        worker.admit(count)
    assert worker.asked[-1].starts > 1
    assert len(worker.admit(60)) < 60
    times.monotonic_us += 4_000_000
    worker.admit(2)
    worker.admit(2)
    assert [request.starts for request in worker.asked[-2:]] == [2, 2]


def test_a_block_is_not_given_to_messages_that_might_start_too_late(times: Times) -> None:
    worker = taker(times, limits_of("100/m", 50))
    worker.admit(1)
    worker.admit(1)
    assert worker.block.left > 1
    times.monotonic_us = round(worker.block.start_until * 1_000_000) - LEAST_WITHIN_US
    worker.admit(1)
    assert len(worker.asked) == 3
    assert worker.block.left == worker.asked[-1].starts - 1, "what was left is lost"


def test_the_time_of_starts_is_that_of_their_request_and_begins_before_the_limiter_knows_of_it(times: Times) -> None:
    worker = taker(times, limits_of("1000/s", 1_000))
    for _ in range(2):
        before_us = times.monotonic_us
        (lease,) = worker.admit(1, call_us=30_000)
        assert lease.start_until * 1_000_000 == pytest.approx(before_us + worker.asked[-1].within_us)


steps = st.lists(
    st.tuples(
        st.integers(0, 1),  # the worker
        st.integers(0, 400_000),  # the time that passes
        st.integers(1, 20),  # how many messages it admits
        st.integers(0, 50_000),  # how long the call takes
        st.floats(0, 1),  # when they start, as a part of the time that they have
        st.sampled_from([0, 0, 0, -300_000, -3_600_000_000]),  # a step of the limiter's clock
        st.booleans(),  # whether the worker knows of no refusal
    ),
    max_size=50,
)


@given(steps, st.sampled_from([("10/s", 10), ("100/s", 100), ("3/s", 12), ("3/s", 1), ("3/s", 2), ("100/s", 20)]))
def test_no_span_has_more_starts_than_the_rate_says_whenever_two_workers_use_them(
    steps: list[tuple[int, int, int, int, float, int, bool]], rate: tuple[str, int]
) -> None:
    times, limits = Times(), limits_of(*rate)
    limiter = MemoryLimiter(times.clock_ms)
    workers = [Taker(times, limiter, limits) for _ in range(2)]
    started_us: list[float] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(starts, "monotonic", times.monotonic)
        for number, passed_us, count, call_us, part, step_us, is_roomy in steps:
            times.monotonic_us += passed_us
            times.step_us += step_us
            for lease in workers[number].admit(count, call_us, is_roomy=is_roomy):
                start_until = lease.start_until if math.isfinite(lease.start_until) else 0.0  # it starts at once
                left_us = max(start_until * 1_000_000 - times.monotonic_us, 0)
                started_us.append(times.monotonic_us + part * left_us)
    started_us.sort()
    assert limits.interval_us is not None
    for first, first_us in enumerate(started_us):
        for last, last_us in enumerate(started_us[first:], first):
            assert (last - first + 1 - limits.burst) * limits.interval_us <= last_us - first_us + 1
