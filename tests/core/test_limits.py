"""The limits of a handler as they are written, and the arithmetic of permits and turns."""

import re
from itertools import pairwise
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from hypothesis import example, given, strategies as st

from django_delayq import Message, delay_execute
from django_delayq.core.errors import DataMismatch
from django_delayq.core.limits import Limit, Permits, acquire, check_limits, spread
from django_delayq.core.requests import PermitRequest

LEASE_MS = 1_000


def requests(*tokens: int, starts: int = 1) -> list[PermitRequest]:
    """Requests of one limit, each for so many starts; `acquire` reads nothing else of them."""
    return [PermitRequest("k", "", token, starts=starts) for token in tokens]


@pytest.mark.parametrize(
    ("rate", "interval_us"),
    [("1/s", 1_000_000), ("100/m", 600_000), ("3/s", 333_334), ("1000/h", 3_600_000), ("1/d", 86_400_000_000)],
)
def test_a_rate_is_the_time_between_two_starts_rounded_up(rate: str, interval_us: int) -> None:
    limits = check_limits(None, None, rate)
    assert limits is not None
    assert limits.interval_us == interval_us


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_concurrency": 0}, "max_concurrency=0 is too small; give 1 or more"),
        ({"max_concurrency": -1}, "max_concurrency=-1 is too small"),
        ({"max_concurrency": 1_001}, "give 1000 or less"),
        ({"max_concurrency": "1"}, "max_concurrency='1' is str"),
        ({"max_concurrency": True}, "max_concurrency=True is bool"),
        ({"concurrency_key": "a:{b}"}, "concurrency_key='a:{b}' limits nothing alone; add max_concurrency=1"),
        ({"max_concurrency": 1, "concurrency_key": "account"}, "names no field of the data; write it like"),
        ({"max_concurrency": 1, "concurrency_key": "a:{b}}"}, "names no field"),
        ({"max_concurrency": 1, "concurrency_key": "a:{b.c}"}, "{b.c} is no name of a field"),
        ({"max_concurrency": 1, "concurrency_key": "a:{b!r}"}, "{b!r} is no name of a field"),
        ({"max_concurrency": 1, "concurrency_key": 7}, "concurrency_key=7 is int"),
        ({"rate_limit": "0/m"}, "the number of rate_limit=0 is too small"),
        ({"rate_limit": "-1/m"}, "rate_limit='-1/m' is no rate; write it like"),
        ({"rate_limit": "100/w"}, "rate_limit='100/w' is no rate"),
        ({"rate_limit": "100"}, "rate_limit='100' is no rate"),
        ({"rate_limit": "1.5/s"}, "rate_limit='1.5/s' is no rate"),
        ({"rate_limit": 100}, "rate_limit=100 is int; write it like '100/m'"),
        ({"rate_limit": "1000001/s"}, "give 1000000 or less"),
        ({"rate_key": "a:{b}"}, "rate_key='a:{b}' limits nothing alone; add rate_limit='100/m'"),
        ({"rate_key": "a:{b}", "max_concurrency": 1}, "rate_key='a:{b}' limits nothing alone"),
        ({"rate_limit": "1/s", "rate_key": "account"}, "rate_key='account' names no field of the data"),
        ({"rate_limit": "1/s", "rate_key": 7}, "rate_key=7 is int"),
        ({"burst": 2}, "burst=2 is that of a rate; add rate_limit='100/m'"),
        ({"rate_limit": "1/s", "burst": 0}, "burst=0 is too small; give 1 or more"),
        ({"rate_limit": "1/s", "burst": 1_000_001}, "give 1000000 or less"),
        ({"rate_limit": "1/d", "burst": 400}, "burst=400 takes over a year at rate_limit='1/d'; give less"),
    ],
)
def test_a_wrong_limit_is_refused_where_it_is_written(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=re.escape(said)):

        @delay_execute("k", **options)
        def handle(message: Message[Any]) -> None: ...


def test_the_rate_and_the_permits_of_a_message_may_have_keys_of_their_own() -> None:
    limits = check_limits(1, "account:{account}", "1/s", "host:{host}")
    assert limits is not None
    assert limits.values_of({"account": 1, "host": "a"}) == ("account:1", "host:a")
    with pytest.raises(DataMismatch, match=r"rate_key='host:{host}' names 'host', which this data doesn't have"):
        limits.values_of({"account": 1})


@pytest.mark.parametrize(
    ("rate", "burst", "within_us", "ahead"),
    [
        ("100/m", 1, 0, 0),
        ("100/m", 20, 1_000_000, 2),
        ("1000/s", 1_000, 100_000, 100),
        ("1000/s", 900, 100_000, 90),  # a tenth of the burst would be less than a busy worker needs
        ("6000/m", 20, 100_000, 2),
        ("6000/m", 19, 0, 0),  # what it needs is more than half of the burst
    ],
)
def test_starts_are_taken_ahead_only_of_a_burst_that_is_long_enough(
    rate: str, burst: int, within_us: int, ahead: int
) -> None:
    limits = check_limits(None, None, rate, None, burst)
    assert limits is not None
    assert (limits.within_us, limits.most_ahead) == (within_us, ahead)


@pytest.mark.parametrize(
    ("rate", "burst", "within_us"),
    [
        ("100/m", 1, 100_000),
        ("60/m", 1, 100_000),
        ("60/m", 9, 900_000),
        ("59/m", 1, 0),  # a start that is lost would keep its value waiting for over a second
        ("1/h", 9, 0),
        ("1/h", 10, 1_000_000),
        ("5/s", 1, 100_000),
        ("6/s", 1, 0),  # a start may cost its value half of its rate, not more
        ("6/s", 2, 100_000),
        ("100/m", 200, 1_000_000),
    ],
)
def test_starts_are_taken_ahead_of_a_short_burst_only_while_its_value_is_not_known_to_be_busy(
    rate: str, burst: int, within_us: int
) -> None:
    of_value, of_all = (check_limits(None, None, rate, key, burst) for key in ("{}", None))
    assert of_value is not None
    assert of_all is not None
    assert (of_value.roomy_within_us, of_all.roomy_within_us) == (within_us, 0)
    assert of_value.within_us == (0 if burst < 10 else within_us)


def test_starts_for_messages_to_come_need_a_burst_that_lasts_longer_than_a_start() -> None:
    short, longer = (check_limits(None, None, "6000/m", "{}", burst) for burst in (20, 100))
    assert short is not None
    assert longer is not None
    assert short.ahead(is_roomy=True) == (100_000, 100_000, 0)
    assert longer.ahead(is_roomy=True) == (100_000, 500_000, 10)


TEXTS = st.text("1: ,'\"\\\n", max_size=4)


def value_of(template: str, data: Any) -> str:
    limits = check_limits(1, template, None)
    assert limits is not None
    return limits.values_of(data)[0]


def test_a_concurrency_key_is_filled_from_the_data() -> None:
    assert value_of("{kind}:{id}", {"kind": "{x}", "id": 7, "more": []}) == "{x}:7 3,1"
    assert value_of("order:{}", 7) == "order:7"
    assert value_of("100%s of {a}%", {"a": "%d"}) == "100%s of %d%"
    assert value_of("{a}", {"a": "x\x1f\n"}) == r"'x\x1f\n'"


@given(st.tuples(TEXTS, TEXTS), st.tuples(TEXTS, TEXTS), st.sampled_from(["{a}:{b}", "{a}{b}", "{a} {b}"]))
def test_two_pairs_of_data_have_two_values(one: tuple[str, str], other: tuple[str, str], template: str) -> None:
    values = [value_of(template, dict(zip("ab", pair, strict=True))) for pair in (one, other)]
    assert (values[0] == values[1]) == (one == other)


@pytest.mark.parametrize(
    ("template", "data", "said"),
    [
        ("a:{b}", {"c": 1}, "names 'b', which this data doesn't have"),
        ("a:{b}", 7, "names 'b', which this data doesn't have"),
        ("a:{b}", {"b": None}, "the field 'b' is of type NoneType"),
        ("a:{b}", {"b": [1]}, "the field 'b' is of type list"),
        ("a:{}", {"b": 1}, "the data itself is of type dict"),
        ("a:{b}", {"b": "x" * 300}, "makes 302 characters of this data"),
        ("{a}{b}", {"a": "x" * 100, "b": "x" * 99}, "makes 206 characters of this data"),
    ],
)
def test_data_that_gives_no_concurrency_key_is_named(template: str, data: Any, said: str) -> None:
    with pytest.raises(DataMismatch, match=re.escape(said)):
        value_of(template, data)


steps = st.lists(
    st.tuples(
        st.integers(0, 700_000), st.lists(st.integers(1, 12), max_size=4, unique=True), st.sets(st.integers(1, 12))
    ),
    max_size=60,
)


@given(steps, st.none() | st.integers(1, 3), st.none() | st.integers(1, 500_000))
def test_whatever_is_asked_there_are_never_too_many_permits_nor_starts(
    steps: list[tuple[int, list[int], set[int]]], most: int | None, interval_us: int | None
) -> None:
    permits, turn_us, now_us, limit = Permits(), 0, 1_700_000_000_000_000, Limit("k", "", most, interval_us)
    held: dict[int, int] = {}  # as promised: token to the end of its permit
    starts: list[int] = []
    for passed_us, tokens, given_back in steps:
        now_us += passed_us
        permits.release(given_back)
        held = {token: end for token, end in held.items() if end > now_us // 1000 and token not in given_back}
        answers, turn_us = acquire(limit, permits, turn_us, requests(*tokens), LEASE_MS, now_us)
        for token, answer in zip(tokens, answers, strict=True):
            if answer is not None:
                assert answer.wait_ms > 0
                assert token not in held
                continue
            if token not in held:
                starts.append(now_us)
            if most is not None:
                held[token] = now_us // 1000 + LEASE_MS
        assert most is None or len(permits.ends) <= most
        assert most is None or set(held) <= set(permits.ends)
    assert all(b - a >= (interval_us or 0) for a, b in pairwise(starts))


asks_of_starts = st.lists(
    st.tuples(st.integers(0, 3_000), st.integers(1, 4), st.sampled_from([0, 0, 1_500])), max_size=40
)


@given(asks_of_starts, st.integers(1, 5), st.integers(1, 2_000))
@example([(0, 1, 1_500), (0, 1, 0), (2_000, 1, 0)], 1, 2_000)  # at once, after one that was taken ahead
def test_no_span_has_more_starts_than_the_burst_and_its_part_of_the_rate_whenever_they_are_used(
    asks: list[tuple[int, int, int]], burst: int, interval_us: int
) -> None:
    starts: list[tuple[int, int]] = []  # the first and the last moment at which each may be used
    turn_us, now_us = 0, 1_700_000_000_000_000
    for passed_us, count, within_us in asks:
        now_us += passed_us
        within_us = min(within_us, max((burst - 1) * interval_us, interval_us // 2))  # as that of each handler
        limit = Limit("k", "", None, interval_us, "", burst, within_us)
        (answer,), turn_us = acquire(limit, Permits(), turn_us, requests(1, starts=count), LEASE_MS, now_us)
        starts += [(now_us, now_us + within_us)] * (count if answer is None else answer.starts)
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            least_us = max(starts[last][0] - starts[first][1], 0)
            assert (last - first + 1 - burst) * interval_us <= least_us


@given(asks_of_starts, st.integers(1, 5), st.integers(1, 2_000))
def test_starts_of_one_request_are_granted_as_if_each_was_asked_for(
    asks: list[tuple[int, int, int]], burst: int, interval_us: int
) -> None:
    turn_us = turn_of_each_us = 0
    now_us = 1_700_000_000_000_000
    for passed_us, count, within_us in asks:
        now_us += passed_us
        limit = Limit("k", "", None, interval_us, "", burst, within_us)
        (answer,), turn_us = acquire(limit, Permits(), turn_us, requests(1, starts=count), LEASE_MS, now_us)
        each, turn_of_each_us = acquire(limit, Permits(), turn_of_each_us, requests(*range(count)), LEASE_MS, now_us)
        refused = [one for one in each if one is not None]
        assert turn_us == turn_of_each_us
        assert answer == (refused[0]._replace(starts=count - len(refused)) if refused else None)


@given(st.lists(st.integers(0, 3_000), max_size=40), st.integers(1, 5), st.integers(1, 2_000))
def test_a_start_at_once_is_refused_only_where_it_would_be_one_too_many(
    gaps: list[int], burst: int, interval_us: int
) -> None:
    starts: list[int] = []
    turn_us, now_us, limit = 0, 1_700_000_000_000_000, Limit("k", "", None, interval_us, "", burst)
    for gap in gaps:
        now_us += gap
        fits = all(
            (len(starts) - i + 1 - burst) * interval_us <= now_us - start_us for i, start_us in enumerate(starts)
        )
        (answer,), turn_us = acquire(limit, Permits(), turn_us, requests(1), LEASE_MS, now_us)
        assert (answer is None) == fits
        if answer is None:
            starts.append(now_us)


@given(st.integers(2, 30), st.integers(1, 500_000))
def test_who_asks_again_when_told_gets_its_turn(count: int, interval_us: int) -> None:
    limit, permits, turn_us, now_us = Limit("k", "", None, interval_us), Permits(), 0, 1_700_000_000_000_000
    answers, turn_us = acquire(limit, permits, turn_us, requests(*range(count)), LEASE_MS, now_us)
    at_us = now_us
    for answer in spread([PermitRequest("k", "", n, None, interval_us) for n in range(count)], answers)[1:]:
        assert answer is not None
        # A wait is whole milliseconds, so that it may end later than the turn comes.
        at_us = max(now_us + answer.wait_ms * 1000, at_us + interval_us)
        granted, turn_us = acquire(limit, permits, turn_us, requests(99), LEASE_MS, at_us)
        assert granted == [None]


def test_a_clock_that_went_back_makes_nobody_wait_for_longer() -> None:
    limit, permits, now_us = Limit("k", "", 1, 1_000_000), Permits(), 1_700_000_000_000_000
    _, turn_us = acquire(limit, permits, 0, requests(1), LEASE_MS, now_us)
    now_us -= 3_600_000_000
    most_ms = 1_500  # the last start may have been taken half an interval ahead
    for _ in range(2):
        (answer,), turn_us = acquire(limit, permits, turn_us, requests(2), LEASE_MS, now_us)
        assert answer is not None
        assert answer.wait_ms <= most_ms
        now_us += most_ms * 1000 // 2
    assert acquire(limit, permits, turn_us, requests(3), LEASE_MS, now_us)[0] == [None]


@given(st.lists(st.integers(1, 3 * LEASE_MS), min_size=1))
def test_a_permit_lasts_for_its_lease_and_until_its_holder_could_renew_it_and_no_longer(gaps: list[int]) -> None:
    permits, now_ms = Permits(), 1_700_000_000_000
    permits.look(now_ms, LEASE_MS)
    end_ms = now_ms + LEASE_MS
    permits.take(1, end_ms)
    first_late_ms = None  # the first look after its end
    for gap in gaps:
        before_ms, now_ms = now_ms, now_ms + gap
        permits.look(now_ms, LEASE_MS)
        if now_ms >= end_ms and first_late_ms is None:
            first_late_ms = now_ms
        if now_ms < end_ms or (now_ms == first_late_ms and before_ms < end_ms - LEASE_MS // 2):
            assert 1 in permits.ends
        if first_late_ms is not None and now_ms >= first_late_ms + LEASE_MS // 2:
            assert 1 not in permits.ends


@given(st.lists(st.integers(-3 * LEASE_MS, 3 * LEASE_MS).filter(bool), min_size=1))
def test_a_permit_whose_holder_renews_it_outlives_each_jump_of_the_clock(jumps: list[int]) -> None:
    permits, now_ms = Permits(), 1_700_000_000_000
    permits.look(now_ms, LEASE_MS)
    permits.take(1, now_ms + LEASE_MS)
    for jump in jumps:
        for _ in range(2):  # a third of a lease later the holder renews; somebody else looks before, after the jump
            now_ms += jump + LEASE_MS // 6
            permits.look(now_ms, LEASE_MS)
            jump = 0
        assert 1 in permits.ends
        permits.take(1, now_ms + LEASE_MS)
