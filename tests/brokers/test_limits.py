"""Limits over all workers: permits that leases hold, and turns a time apart. All who have them keep them alike."""

from collections.abc import Sequence
from dataclasses import replace

from django_delayq.brokers.base import PermitRequest, Throttled
from tests.brokers.rig import LEASE_MS, Rig

MINUTE_US = 60_000_000
STEPS, STEP_MS = 36, 300
"""No permit is free for 10.8 s. A line is forgotten after 1 s, so a machine may take 0.7 s for a step."""


def permit(token: int, *, most: int = 1, value: str = "", key: str = "k") -> PermitRequest:
    return PermitRequest(key, value, token, most)


def turn(token: int, interval_us: int = MINUTE_US) -> PermitRequest:
    return PermitRequest("k", "", token, None, interval_us)


def granted(rig: Rig, asks: Sequence[PermitRequest], lease_ms: int = LEASE_MS) -> list[int]:
    """The tokens of those that may start."""
    answers = rig.broker.limiter.acquire(asks, lease_ms=lease_ms)
    assert all(answer is None or answer.wait_ms > 0 for answer in answers)
    return [ask.token for ask, answer in zip(asks, answers, strict=True) if answer is None]


def refusals(rig: Rig, asks: Sequence[PermitRequest]) -> list[Throttled]:
    answers = rig.broker.limiter.acquire(asks, lease_ms=LEASE_MS)
    return [answer for answer in answers if answer is not None]


def test_no_more_than_there_are_permits_are_granted_in_one_call_or_in_many(rig: Rig) -> None:
    assert granted(rig, [permit(n, most=2) for n in range(1, 5)]) == [1, 2]
    assert granted(rig, [permit(5, most=2)]) == []


def test_a_permit_that_is_given_back_is_free_and_only_its_own(rig: Rig) -> None:
    granted(rig, [permit(1, most=2), permit(2, most=2)])
    rig.broker.limiter.release([permit(1, most=2), permit(9, most=2)])
    assert granted(rig, [permit(3, most=2), permit(4, most=2)]) == [3]


def test_each_value_and_each_key_has_permits_of_its_own(rig: Rig) -> None:
    asks = [permit(1, value="a"), permit(2, value="a"), permit(3, value="b"), permit(4, key="l", value="a"), permit(5)]
    assert granted(rig, asks) == [1, 3, 4, 5]


def test_names_may_hold_what_separates_them_elsewhere(rig: Rig) -> None:
    names = [("a:b", "c"), ("a", "b:c"), ("}{", "ü ☕"), ("}", "{ü ☕")]
    asks = [permit(n, key=key, value=value) for n, (key, value) in enumerate(names, 1)]
    assert granted(rig, asks) == [1, 2, 3, 4]


def test_values_that_a_language_might_hold_to_be_equal_have_permits_of_their_own(rig: Rig) -> None:
    values = ["a", "A", "á", "a\N{COMBINING ACUTE ACCENT}", "a ", " a", "ß", "ss"]
    assert granted(rig, [permit(n, value=value) for n, value in enumerate(values)]) == list(range(len(values)))


def test_a_permit_lapses_with_its_lease(rig: Rig) -> None:
    granted(rig, [permit(1)])
    rig.advance(LEASE_MS // 2)
    assert granted(rig, [permit(2)]) == []
    rig.advance(LEASE_MS // 2)
    assert granted(rig, [permit(3)]) == [3]


def test_a_permit_lapses_soon_after_its_lease_where_nobody_has_asked_meanwhile(rig: Rig) -> None:
    granted(rig, [permit(1)])
    rig.advance(2 * LEASE_MS)
    granted(rig, [permit(2)])
    rig.broker.limiter.release([permit(2)])
    rig.advance(LEASE_MS // 2)
    assert granted(rig, [permit(3)]) == [3]


def test_who_holds_a_permit_holds_it_anew_when_asking_again(rig: Rig) -> None:
    granted(rig, [permit(1)])
    rig.advance(LEASE_MS - 5_000)
    assert granted(rig, [permit(1)]) == [1]
    rig.advance(LEASE_MS - 5_000)
    assert granted(rig, [permit(2)]) == []


def test_a_permit_that_is_renewed_lasts_for_another_lease(rig: Rig) -> None:
    granted(rig, [permit(1), permit(2, value="a")])
    rig.advance(LEASE_MS - 5_000)
    rig.broker.limiter.renew([permit(1), permit(2, value="a")], lease_ms=LEASE_MS)
    for _ in range(2):
        assert granted(rig, [permit(3), permit(4, value="a")]) == []
        rig.advance(LEASE_MS // 2)
    assert granted(rig, [permit(3), permit(4, value="a")]) == [3, 4]


def test_a_renewal_takes_no_turn(rig: Rig) -> None:
    both = PermitRequest("k", "", 1, 9, MINUTE_US)
    granted(rig, [both])
    rig.advance(50_000)
    rig.broker.limiter.renew([both], lease_ms=LEASE_MS)
    rig.advance(10_000)
    assert granted(rig, [turn(2)]) == [2]


def test_what_runs_is_counted_also_where_another_has_got_its_permit(rig: Rig) -> None:
    assert granted(rig, [permit(1)]) == [1]
    rig.broker.limiter.renew([permit(2)], lease_ms=LEASE_MS)
    rig.broker.limiter.release([permit(1)])
    assert granted(rig, [permit(3)]) == []
    rig.broker.limiter.release([permit(2)])
    assert granted(rig, [permit(3)]) == [3]


def test_those_that_find_no_permit_come_again_one_after_the_other(rig: Rig) -> None:
    granted(rig, [permit(1)])
    waits_ms = [refusal.wait_ms for refusal in refusals(rig, [permit(n) for n in range(2, 52)])]
    assert waits_ms == sorted(set(waits_ms))
    assert waits_ms[-1] >= 50 * 10 - 10


def test_where_no_permit_was_free_for_long_they_come_less_often_until_one_is(rig: Rig) -> None:
    granted(rig, [permit(1)], lease_ms=60_000)
    for _ in range(STEPS):
        refusals(rig, [permit(2)])
        rig.advance(STEP_MS)
    late = refusals(rig, [permit(2), permit(3)])
    assert late[1].wait_ms - late[0].wait_ms == 250
    rig.broker.limiter.release([permit(1)])
    granted(rig, [permit(4)])
    first, second = refusals(rig, [permit(5), permit(6)])
    assert second.wait_ms - first.wait_ms == 10


def test_a_backlog_comes_again_soon_after_a_permit_that_was_held_for_long(rig: Rig) -> None:
    granted(rig, [permit(1)], lease_ms=600_000)
    for _ in range(STEPS):
        refusals(rig, [permit(2)])
        rig.advance(STEP_MS)
    waits_ms = [refusal.wait_ms for refusal in refusals(rig, [permit(n) for n in range(2, 302)])]
    assert waits_ms == sorted(set(waits_ms))
    assert 2_500 < waits_ms[-1] < 300 * 250 / 2  # a quarter of the time that none was free, and a bit for each


def test_a_limit_of_the_key_is_told_from_one_of_a_value(rig: Rig) -> None:
    granted(rig, [permit(1), permit(2, value="a")])
    assert [refusal.of_key for refusal in refusals(rig, [permit(3), permit(4, value="a")])] == [True, False]
    both = [PermitRequest("l", "a", 5, 1, MINUTE_US), PermitRequest("l", "b", 6, 1, MINUTE_US)]
    assert [refusal.of_key for refusal in refusals(rig, both)] == [True]


def test_turns_are_an_interval_apart_and_none_is_saved_up(rig: Rig) -> None:
    assert granted(rig, [turn(1), turn(2), turn(3)]) == [1]
    rig.advance(59_000)
    assert granted(rig, [turn(4)]) == []
    rig.advance(1_000)
    assert granted(rig, [turn(5), turn(6)]) == [5]
    rig.advance(600_000)
    assert granted(rig, [turn(7), turn(8)]) == [7]


def test_those_that_wait_for_their_turn_are_told_theirs(rig: Rig) -> None:
    first, second = refusals(rig, [turn(1), turn(2), turn(3)])
    assert second.wait_ms - first.wait_ms == 60_000
    assert 0 < first.wait_ms <= 60_000


def test_those_of_other_values_are_told_the_turns_after_it(rig: Rig) -> None:
    asks = [PermitRequest("k", value, token, 1, MINUTE_US) for token, value in enumerate("abacad")]
    assert granted(rig, asks[:1]) == [0]
    waits_ms = [refusal.wait_ms for refusal in refusals(rig, asks[1:])]
    assert [round((later - waits_ms[0]) / 60_000) for later in waits_ms] == [0, 1, 2, 3, 4]
    assert 0 < waits_ms[0] <= 60_000


def test_whoever_is_refused_asks_again_within_five_minutes(rig: Rig) -> None:
    """So a raised limit is noticed soon, and what others have left that were to ask before."""
    waits_ms = [refusal.wait_ms for refusal in refusals(rig, [turn(n, 3_600_000_000) for n in range(9)])]
    assert waits_ms == [300_000] * 8


def test_a_burst_starts_at_once_and_comes_back_one_interval_each(rig: Rig) -> None:
    asks = [PermitRequest("k", "", n, None, MINUTE_US, burst=3) for n in range(12)]
    assert granted(rig, asks[:2]) == [0, 1]
    assert granted(rig, asks[2:5]) == [2]
    assert 0 < refusals(rig, asks[4:5])[0].wait_ms <= 60_000
    rig.advance(120_000)
    assert granted(rig, asks[5:9]) == [5, 6]
    rig.advance(600_000)
    assert granted(rig, asks[8:]) == [8, 9, 10]


def test_each_value_of_a_rate_has_turns_of_its_own(rig: Rig) -> None:
    asks = [PermitRequest("k", "", n, None, MINUTE_US, value) for n, value in enumerate(["a", "b", "a", "", "b"])]
    assert granted(rig, asks) == [0, 1, 3]
    assert [(refusal.of_key, refusal.of_rate) for refusal in refusals(rig, asks)] == [
        (False, True),
        (False, True),
        (False, True),
        (True, True),
        (False, True),
    ]


def test_a_rate_of_a_value_holds_for_all_values_of_the_permits(rig: Rig) -> None:
    asks = [PermitRequest("k", value, n, 1, MINUTE_US, "r", 2) for n, value in enumerate("abc")]
    assert granted(rig, asks) == [0, 1]
    assert granted(rig, [PermitRequest("k", "d", 5, 1, MINUTE_US, "other")]) == [5]


def test_starts_that_are_taken_ahead_count_from_the_end_of_their_time(rig: Rig) -> None:
    ahead = [PermitRequest("k", "", n, None, MINUTE_US, burst=3, within_us=MINUTE_US) for n in range(4)]
    assert granted(rig, ahead) == [0, 1]  # the third may start when these do, a minute from now
    rig.advance(60_000)
    at_once = [PermitRequest("k", "", n, None, MINUTE_US, burst=3) for n in range(4, 8)]
    assert granted(rig, at_once) == [4]


def test_a_start_at_once_keeps_its_distance_from_one_that_was_taken_ahead(rig: Rig) -> None:
    assert granted(rig, [PermitRequest("k", "", 1, None, MINUTE_US, within_us=1_000_000)]) == [1]
    for wait_ms in (0, 60_000):
        rig.advance(wait_ms)
        assert granted(rig, [turn(2)]) == [], "the first may start a second after it was granted"
    rig.advance(1_000)
    assert granted(rig, [turn(2)]) == [2]


def test_a_turn_is_never_further_away_than_an_interval_and_a_second(rig: Rig) -> None:
    hour_us = 60 * MINUTE_US
    assert granted(rig, [PermitRequest("k", "", 1, None, hour_us, within_us=240 * hour_us)]) == [1]
    assert granted(rig, [turn(2, hour_us)]) == []  # looks at a turn as after a step back of the clock
    rig.advance(3_601_500)
    assert granted(rig, [turn(2, hour_us)]) == [2]


def test_of_several_starts_as_many_are_granted_as_may_come_and_the_rest_is_told_its_turn(rig: Rig) -> None:
    block = PermitRequest("k", "", 0, None, MINUTE_US, burst=4, starts=3)
    assert granted(rig, [block]) == [0]
    (refusal,) = refusals(rig, [block])
    assert (refusal.starts, refusal.of_key, refusal.of_rate) == (1, True, True)
    assert 0 < refusal.wait_ms <= 60_000
    rig.advance(120_000)
    (refusal,) = refusals(rig, [replace(block, within_us=MINUTE_US)])
    assert refusal.starts == 2
    assert [refusal.starts for refusal in refusals(rig, [block])] == [0]


def test_who_asks_for_several_starts_has_one_permit(rig: Rig) -> None:
    block = PermitRequest("k", "", 1, 2, MINUTE_US, burst=3, starts=2)
    assert granted(rig, [block]) == [1]
    assert granted(rig, [block]) == [1]
    assert [refusal.starts for refusal in refusals(rig, [replace(block, token=2)])] == [1]
    assert granted(rig, [permit(3, most=2)]) == []


def test_a_request_without_a_rate_leaves_the_turn_of_its_key_alone(rig: Rig) -> None:
    assert granted(rig, [turn(1)]) == [1]
    assert granted(rig, [permit(2)]) == [2]
    assert granted(rig, [turn(3)]) == []
    rig.advance(MINUTE_US // 1000)
    assert granted(rig, [turn(4)]) == [4]


def test_who_finds_no_permit_takes_no_turn_and_who_waits_for_a_turn_takes_no_permit(rig: Rig) -> None:
    granted(rig, [permit(1)])
    assert granted(rig, [PermitRequest("k", "", 2, 1, MINUTE_US)]) == []
    rig.broker.limiter.release([permit(1)])
    assert granted(rig, [PermitRequest("k", "", 3, 1, MINUTE_US)]) == [3]
    rig.broker.limiter.release([permit(3)])
    assert granted(rig, [PermitRequest("k", "", 4, 1, MINUTE_US)]) == []
    assert granted(rig, [permit(5)]) == [5]


def test_a_holder_that_asks_again_takes_no_other_turn(rig: Rig) -> None:
    ask = PermitRequest("k", "", 1, 2, MINUTE_US)
    granted(rig, [ask])
    rig.advance(MINUTE_US // 1000 - 50_000)
    assert granted(rig, [ask]) == [1]
    rig.advance(50_000)
    assert granted(rig, [PermitRequest("k", "", 2, 2, MINUTE_US)]) == [2]


def test_no_asks_are_no_call(rig: Rig) -> None:
    assert rig.broker.limiter.acquire([], lease_ms=LEASE_MS) == []
    rig.broker.limiter.renew([], lease_ms=LEASE_MS)
    rig.broker.limiter.release([])
