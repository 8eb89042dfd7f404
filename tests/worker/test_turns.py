"""What a hand takes from a lane at a time."""

import pytest

from django_delayq.brokers.base import Claimed, Header
from django_delayq.core.limits import Limits
from django_delayq.worker.lanes import MOST_PER_HAND, Lane, Lease
from django_delayq.worker.leases import Leases
from django_delayq.worker.outage import Outage
from django_delayq.worker.settling import Settling
from django_delayq.worker.turns import MOST_BYTES, Turns
from tests.worker.rig import Rig, make_handler

ENDLESS = float("inf")


@pytest.fixture
def turns(rig: Rig) -> Turns:
    leases = Leases(rig.broker, 15_000, outage := Outage())
    return Turns(leases, Settling(rig.broker, leases, outage), lambda: None, lambda lane: None, lambda lane: True)


def make_lane(
    waiting: int = 0,
    *,
    concurrency: int = 1,
    mean_s: float | None = 0.000_1,
    at_most_once: bool = False,
    limits: Limits | None = None,
) -> Lane:
    """A lane with a hand in it."""
    handler = make_handler(lambda message: None, at_most_once=at_most_once, limits=limits)
    lane = Lane(handler, [("default", "k")], concurrency, active=1, mean_s=mean_s)
    for n in range(waiting):
        add(lane, f"{n}")
    return lane


def add(lane: Lane, id: str, *, size: int = 0, once: bool = False, held_until: float = ENDLESS) -> None:
    header = Header("default", "k", at_most_once=once)
    lane.leases.append(Lease(Claimed(id, 1, 0, header, b"x" * size), lane, 0.0, held_until, 0.0))


def take(turns: Turns, lane: Lane) -> list[str]:
    return [lease.claimed.id for lease in turns.take_batch(lane, MOST_PER_HAND)]


@pytest.mark.parametrize(
    ("lane", "hands", "share"),
    [
        (make_lane(100), 1, MOST_PER_HAND),
        (make_lane(5), 1, 5),
        (make_lane(0), 1, 0),
        (make_lane(100, mean_s=0.005), 1, 4),
        (make_lane(100, mean_s=None), 1, 1),
        (make_lane(100, mean_s=1), 1, 1),
        (make_lane(12, concurrency=4), 4, 3),
        (make_lane(13, concurrency=4), 4, 4),
        (make_lane(12, concurrency=100), 2, 6),
        (make_lane(100, at_most_once=True), 1, 1),
        (make_lane(100, limits=Limits(max_concurrency=5)), 1, 1),
    ],
)
def test_a_hand_takes_its_share_of_what_waits_and_no_more_than_a_moments_work(
    lane: Lane, hands: int, share: int
) -> None:
    assert lane.share(hands) == share


def test_what_must_not_start_twice_is_taken_alone(turns: Turns) -> None:
    lane = make_lane(2)
    add(lane, "once", once=True)
    add(lane, "behind")
    assert take(turns, lane) == ["0", "1"]
    assert take(turns, lane) == ["once"]
    assert take(turns, lane) == ["behind"]


def test_a_batch_has_little_data_unless_one_message_has_more(turns: Turns) -> None:
    lane = make_lane()
    for id, size in {"a": MOST_BYTES - 1, "b": 1, "c": 1, "d": MOST_BYTES * 2, "e": 1}.items():
        add(lane, id, size=size)
    assert take(turns, lane) == ["a", "b"]
    assert take(turns, lane) == ["c"]
    assert take(turns, lane) == ["d"]
    assert take(turns, lane) == ["e"]


def test_a_lease_that_is_over_is_given_back_and_not_taken(turns: Turns, rig: Rig) -> None:
    lane = make_lane(1)
    add(lane, "over", held_until=0.0)
    add(lane, "held")
    assert take(turns, lane) == ["0", "held"]
