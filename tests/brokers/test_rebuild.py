"""Alarms may be gone until somebody, one at a time, has put all of them again."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_delayq.brokers.base import Alarm
from tests.brokers.conftest import ALL, name
from tests.brokers.rig import Rig

LOCK_MS = 20_000

pytestmark = [pytest.mark.parametrize("rig", ALL, ids=name, indirect=True), pytest.mark.needs("rebuild")]

Caller = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def other() -> Iterator[Caller]:
    """Another caller: a thread that stays."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda use: thread.submit(use).result()


def begin(rig: Rig) -> Callable[[], bool]:
    return lambda: rig.timer.begin_rebuild(LOCK_MS)


def test_alarms_are_lost_until_a_rebuild_has_ended(rig: Rig) -> None:
    assert rig.alarms_lost()
    rig.timer.schedule([Alarm("q", "k", "1")])
    assert rig.alarms_lost()
    assert rig.timer.begin_rebuild(LOCK_MS)
    assert rig.alarms_lost()
    assert rig.timer.end_rebuild()
    assert not rig.alarms_lost()


def test_nothing_is_rebuilt_where_nothing_was_lost(rig: Rig, other: Caller) -> None:
    assert rig.timer.begin_rebuild(LOCK_MS)
    assert rig.timer.end_rebuild()
    rig.advance(LOCK_MS)
    assert not rig.timer.begin_rebuild(LOCK_MS)
    assert not other(begin(rig))
    assert not rig.timer.end_rebuild()
    assert not rig.alarms_lost()


def test_one_caller_at_a_time_may_rebuild(rig: Rig, other: Caller) -> None:
    assert rig.timer.begin_rebuild(LOCK_MS)
    assert not other(begin(rig))
    assert not other(rig.timer.end_rebuild)
    assert rig.alarms_lost()
    assert rig.timer.end_rebuild()


def test_nobody_ends_what_he_did_not_begin(rig: Rig) -> None:
    assert not rig.timer.end_rebuild()
    assert rig.alarms_lost()


def test_the_holder_may_hold_on(rig: Rig, other: Caller) -> None:
    assert rig.timer.begin_rebuild(LOCK_MS)
    for _ in range(3):
        rig.advance(LOCK_MS - 5_000)
        assert rig.timer.begin_rebuild(LOCK_MS)
        assert not other(begin(rig))
    assert rig.timer.end_rebuild()


def test_the_lock_of_a_dead_caller_lapses(rig: Rig, other: Caller) -> None:
    assert other(begin(rig))
    assert not rig.timer.begin_rebuild(LOCK_MS)
    rig.advance(LOCK_MS)
    assert rig.timer.begin_rebuild(LOCK_MS)
    assert rig.timer.end_rebuild()
    assert not rig.alarms_lost()


def test_who_comes_too_late_has_rebuilt_nothing(rig: Rig) -> None:
    assert rig.timer.begin_rebuild(LOCK_MS)
    rig.advance(LOCK_MS)
    assert not rig.timer.end_rebuild()
    assert rig.alarms_lost()


def test_who_was_told_that_the_lock_is_lost_has_rebuilt_nothing(rig: Rig, other: Caller) -> None:
    assert rig.timer.begin_rebuild(LOCK_MS)
    rig.advance(LOCK_MS)
    assert other(begin(rig))
    assert not rig.timer.begin_rebuild(LOCK_MS)
    assert not rig.timer.end_rebuild()
    assert other(rig.timer.end_rebuild)


def test_who_lost_the_lock_is_told_before_he_may_begin_anew(rig: Rig, other: Caller) -> None:
    assert rig.timer.begin_rebuild(LOCK_MS)
    rig.advance(LOCK_MS)
    assert not rig.timer.begin_rebuild(LOCK_MS)  # a True would say that what was put so far counts
    assert rig.timer.begin_rebuild(LOCK_MS)
    assert not other(begin(rig))
    assert rig.timer.end_rebuild()


def test_a_late_caller_ends_nobody_elses_rebuild(rig: Rig, other: Caller) -> None:
    assert other(begin(rig))
    rig.advance(LOCK_MS)
    assert rig.timer.begin_rebuild(LOCK_MS)
    assert not other(rig.timer.end_rebuild)
    assert rig.alarms_lost()
    assert rig.timer.end_rebuild()
