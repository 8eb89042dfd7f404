"""Reading all that waits, in pages: what waits all the while is read once, whatever comes and goes meanwhile."""

from collections.abc import Callable

import pytest

from django_delayq.brokers.base import Alarm, Place
from django_delayq.brokers.redis.broker import RedisBroker
from tests.brokers.rig import Rig

LATEST_MS = 2**53


def read(rig: Rig, count: int = 3, between: Callable[[int], None] = lambda page: None, first_ms: int = 0) -> list[str]:
    """The ids of one wait set, in the order read. `between` is called after each page."""
    assert isinstance(rig.broker, RedisBroker)
    place: Place | None = Place(first_ms)
    ids = []
    page = 0
    while place is not None:
        messages, place = rig.broker.queue.scan(0, "q:k", place, LATEST_MS, count)
        ids += [message.id for message in messages]
        between(page)
        page += 1
    return ids


def test_everything_is_read_once_in_the_order_of_due_times(rig: Rig) -> None:
    for number in range(10):
        rig.send(f"m{number}", delay_ms=1000 * (10 - number))
    assert read(rig) == [f"m{number}" for number in reversed(range(10))]
    assert read(rig, count=100) == read(rig, count=1)


def send_at_one_time(rig: Rig, *ids: str) -> None:
    rig.send(*ids)
    at_ms = rig.now_us() // 1000 + 3_600_000
    rig.broker.queue.reschedule(ids, at_ms=at_ms)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_many_that_are_due_at_one_time_are_read_once(rig: Rig, count: int) -> None:
    ids = [f"m{number:02}" for number in range(20)]
    send_at_one_time(rig, *ids)
    assert read(rig, count=count) == ids


@pytest.mark.parametrize("gone", [["m00"], ["m02"], ["m00", "m01", "m02"], ["m01", "m02", "m03"]])
def test_of_those_due_at_one_time_none_is_missed_when_others_leave(rig: Rig, gone: list[str]) -> None:
    ids = [f"m{number:02}" for number in range(10)]
    send_at_one_time(rig, *ids)

    def leave(page: int) -> None:
        if page == 0:
            rig.broker.queue.cancel(gone)

    found = read(rig, between=leave)
    assert sorted(set(found)) == sorted(found)
    assert set(ids) - set(gone) <= set(found)


def test_of_those_due_at_one_time_none_is_read_twice_when_others_come(rig: Rig) -> None:
    at_ms = rig.now_us() // 1000 + 3_600_000
    rig.send("b", "c", "d", "e", "f", "g")
    rig.broker.queue.reschedule(["b", "c", "d", "e", "f", "g"], at_ms=at_ms)

    def come(page: int) -> None:
        if page == 0:
            rig.send("a0", "a1", "a2", "a3", "a4")
            rig.broker.queue.reschedule(["a0", "a1", "a2", "a3", "a4"], at_ms=at_ms)

    found = read(rig, between=come)
    assert [id for id in found if id[0] != "a"] == ["b", "c", "d", "e", "f", "g"]


def test_alarms_that_lie_beside_messages_are_left_out(rig: Rig) -> None:

    rig.send("a", delay_ms=1000)
    rig.timer.schedule([Alarm("q", "k", "7", 500)])
    assert read(rig) == ["a"]
