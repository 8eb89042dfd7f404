"""The cursor says up to which due time every alarm was scheduled. It is never ahead of them."""

import pytest

from django_delayq.brokers.base import Alarm, ClaimRequest
from tests.brokers.conftest import ALL, name
from tests.brokers.rig import LEASE_MS, Rig

pytestmark = [pytest.mark.parametrize("rig", ALL, ids=name, indirect=True), pytest.mark.needs("cursor")]

NOW_MS = 1_700_000_000_000


def test_there_is_none_until_one_is_set(rig: Rig) -> None:
    assert rig.timer.cursor() is None
    assert rig.timer.advance_cursor([], None, NOW_MS) == NOW_MS
    assert rig.timer.cursor() == NOW_MS


def test_it_goes_forward_with_the_alarms(rig: Rig) -> None:
    rig.timer.advance_cursor([], None, NOW_MS)
    assert rig.timer.advance_cursor([Alarm("q", "k", "1")], NOW_MS, NOW_MS + 100) == NOW_MS + 100
    assert rig.timer.cursor() == NOW_MS + 100
    rig.advance(1)
    claims = rig.timer.take_due([ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w")
    assert [alarm.pk for alarm in claims.alarms] == ["1"]


def test_a_lost_one_is_not_set_by_who_went_on_from_it(rig: Rig) -> None:
    assert rig.timer.advance_cursor([], NOW_MS, NOW_MS + 100) is None
    assert rig.timer.cursor() is None


def test_it_is_set_anew_only_where_it_was_lost(rig: Rig) -> None:
    rig.timer.advance_cursor([], None, NOW_MS)
    assert rig.timer.advance_cursor([], None, NOW_MS + 100) == NOW_MS
    assert rig.timer.advance_cursor([], None, NOW_MS - 100) == NOW_MS


def test_it_never_goes_back_by_going_forward(rig: Rig) -> None:
    rig.timer.advance_cursor([], None, NOW_MS)
    assert rig.timer.advance_cursor([], NOW_MS - 50, NOW_MS - 10) == NOW_MS


def test_two_go_forward_from_one_place(rig: Rig) -> None:
    rig.timer.advance_cursor([], None, NOW_MS)
    assert rig.timer.advance_cursor([], NOW_MS, NOW_MS + 100) == NOW_MS + 100
    assert rig.timer.advance_cursor([], NOW_MS, NOW_MS + 150) == NOW_MS + 150


@pytest.mark.parametrize("to_ms", [NOW_MS - 50, NOW_MS + 50])
def test_who_went_on_before_it_was_set_back_does_not_set_it_forward(rig: Rig, to_ms: int) -> None:
    rig.timer.advance_cursor([], None, NOW_MS)
    rig.timer.set_cursor_back(to_ms)
    back_ms = min(to_ms, NOW_MS - 1)
    assert rig.timer.advance_cursor([], NOW_MS, NOW_MS + 100) == back_ms
    assert rig.timer.advance_cursor([], back_ms, NOW_MS + 100) == NOW_MS + 100


def test_one_that_is_lost_is_not_set_back(rig: Rig) -> None:
    rig.timer.set_cursor_back(NOW_MS)
    assert rig.timer.cursor() is None
