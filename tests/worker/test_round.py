"""What queues that come first leave for those that follow them, in one round of claims."""

import pytest

from django_delayq.worker.lanes import Lane
from django_delayq.worker.leases import Leases
from django_delayq.worker.outage import Outage
from django_delayq.worker.round import Round
from django_delayq.worker.settling import Settling
from django_delayq.worker.sync_hands import SyncHands
from tests.worker.rig import Rig, make_handler


def make_lane(key: str, active: int) -> Lane:
    return Lane(make_handler(lambda message: None, key), [("default", key)], concurrency=2, active=active)


def no_hands(rig: Rig, *lanes: Lane) -> SyncHands:
    """Hands that are all busy."""
    leases = Leases(rig.broker, 15_000, outage := Outage())
    settling = Settling(rig.broker, leases, outage)
    return SyncHands(lanes, 0, lambda turns: pytest.fail("a hand"), leases, settling, lambda: None)


@pytest.mark.parametrize(("active", "is_ahead"), [(0, False), (1, False), (2, True)])
def test_nothing_is_claimed_ahead_of_what_an_earlier_queue_has_for_the_next_hand(
    rig: Rig, active: int, is_ahead: bool
) -> None:
    early, fast = make_lane("early", active), make_lane("fast", 1)
    fast.note_run(100, 0.1)
    hands = no_hands(rig, early, fast)
    round_ = Round([(early, hands), (fast, hands)])
    assert round_.want(fast, hands) > 0
    round_.add(early, hands, 0, filled=False, left=True, once=False, presses=True)
    assert (round_.want(fast, hands) > 0) is is_ahead
