"""What a hand takes from a lane at a time."""

import pytest

from django_delayq.brokers.base import Claimed, Header
from django_delayq.core.limits import Limits
from django_delayq.worker.leases import Leases
from django_delayq.worker.outage_log import OutageLog
from django_delayq.worker.prefetch import MAX_PER_SLOT, Lease, PrefetchBuffer
from django_delayq.worker.settler import Settler
from django_delayq.worker.turns import MOST_BYTES, Turns
from tests.worker.rig import Rig, make_handler

ENDLESS = float("inf")


@pytest.fixture
def turns(rig: Rig) -> Turns:
    leases = Leases(rig.broker, 15_000, outage_log := OutageLog())
    return Turns(
        leases, Settler(rig.broker, leases, outage_log), lambda: None, lambda buffer: None, lambda buffer: True
    )


def make_buffer(
    waiting: int = 0,
    *,
    concurrency: int = 1,
    mean_s: float | None = 0.000_1,
    at_most_once: bool = False,
    limits: Limits | None = None,
) -> PrefetchBuffer:
    """A lane with a hand in it."""
    handler = make_handler(lambda message: None, at_most_once=at_most_once, limits=limits)
    buffer = PrefetchBuffer(handler, [("default", "k")], concurrency, active=1, mean_s=mean_s)
    for n in range(waiting):
        add(buffer, f"{n}")
    return buffer


def add(buffer: PrefetchBuffer, id: str, *, size: int = 0, once: bool = False, held_until: float = ENDLESS) -> None:
    header = Header("default", "k", at_most_once=once)
    buffer.leases.append(Lease(Claimed(id, 1, 0, header, b"x" * size), buffer, 0.0, held_until, 0.0))


def take(turns: Turns, buffer: PrefetchBuffer) -> list[str]:
    return [lease.claimed.id for lease in turns.take_batch(buffer, MAX_PER_SLOT)]


@pytest.mark.parametrize(
    ("buffer", "hands", "share"),
    [
        (make_buffer(100), 1, MAX_PER_SLOT),
        (make_buffer(5), 1, 5),
        (make_buffer(0), 1, 0),
        (make_buffer(100, mean_s=0.005), 1, 4),
        (make_buffer(100, mean_s=None), 1, 1),
        (make_buffer(100, mean_s=1), 1, 1),
        (make_buffer(12, concurrency=4), 4, 3),
        (make_buffer(13, concurrency=4), 4, 4),
        (make_buffer(12, concurrency=100), 2, 6),
        (make_buffer(100, at_most_once=True), 1, 1),
        (make_buffer(100, limits=Limits(max_concurrency=5)), 1, 1),
    ],
)
def test_a_hand_takes_its_share_of_what_waits_and_no_more_than_a_moments_work(
    buffer: PrefetchBuffer, hands: int, share: int
) -> None:
    assert buffer.fair_share(hands) == share


def test_what_must_not_start_twice_is_taken_alone(turns: Turns) -> None:
    buffer = make_buffer(2)
    add(buffer, "once", once=True)
    add(buffer, "behind")
    assert take(turns, buffer) == ["0", "1"]
    assert take(turns, buffer) == ["once"]
    assert take(turns, buffer) == ["behind"]


def test_a_batch_has_little_data_unless_one_message_has_more(turns: Turns) -> None:
    buffer = make_buffer()
    for id, size in {"a": MOST_BYTES - 1, "b": 1, "c": 1, "d": MOST_BYTES * 2, "e": 1}.items():
        add(buffer, id, size=size)
    assert take(turns, buffer) == ["a", "b"]
    assert take(turns, buffer) == ["c"]
    assert take(turns, buffer) == ["d"]
    assert take(turns, buffer) == ["e"]


def test_a_lease_that_is_over_is_given_back_and_not_taken(turns: Turns, rig: Rig) -> None:
    buffer = make_buffer(1)
    add(buffer, "over", held_until=0.0)
    add(buffer, "held")
    assert take(turns, buffer) == ["0", "held"]
