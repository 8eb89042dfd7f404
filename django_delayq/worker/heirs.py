"""Slots of limits over all workers that are handed on in this process, from a message that ends to one that waits here.

Without that each slot would go back to the broker, and the next message come for it through the line before it
(brokers/limits.py), which is slow where handlers are fast. So only what soon has its turn waits here.
"""

from collections import deque
from collections.abc import Iterable
from time import monotonic

from django_delayq.attempts import is_at_most_once
from django_delayq.brokers.base import Ask
from django_delayq.worker.lanes import Lane, Lease

HAND_ON_S = 1.0
"""For so long, at most, after it was asked for a slot is handed on: then others may have it."""


def room_for_heirs(lane: Lane) -> int:
    """How many more may wait in a lane for a slot that it has."""
    return max(lane.per_hand - 1 - len(lane.heirs), 0)


def line_up(lease: Lease, ask: Ask, holders: Iterable[Lease]) -> bool:
    """Have a lease take over from one that has a slot in its lane, now or when it ends. Whether there is such a one."""
    lane = lease.lane
    if ask.interval_us is not None or is_at_most_once(lease.claimed.header, lane.handler):
        return False
    with lane.handing:
        passing = [holder for holder in holders if holder.ask and holder.ask.value == ask.value and _may_pass(holder)]
        ended = next((holder for holder in passing if holder.ended), None)
        if ended is not None:  # its slot is not given back yet
            _pass(ended, lease)
            return True
        if not passing or not room_for_heirs(lane):
            return False
        lease.asks_for = ask
        lane.heirs.append(lease)
        return True


def hand_on(lease: Lease) -> list[Lease]:
    """Give the slot of a lease that has ended to the first that waits for it. Gives those that would wait in vain."""
    lane = lease.lane
    if lease.ask is None:
        return []
    with lane.handing:  # who lines up just now either sees that it has ended, or is seen here
        heirs = [heir for heir in lane.heirs if heir.asks_for and lease.ask and heir.asks_for.value == lease.ask.value]
        if not _may_pass(lease):
            lane.heirs = deque(heir for heir in lane.heirs if heir not in heirs)
            return heirs
        if heirs:
            lane.heirs.remove(heirs[0])
            _pass(lease, heirs[0])
            lane.leases.append(heirs[0])
    return []


def give_up(lease: Lease) -> Ask | None:
    """What a lease got and has not handed on; now it has that no more."""
    with lease.lane.handing:
        ask, lease.ask = lease.ask, None
    return ask


def _may_pass(lease: Lease) -> bool:
    return lease.is_held() and monotonic() < lease.hand_on_until


def _pass(lease: Lease, heir: Lease) -> None:
    heir.ask, heir.hand_on_until, lease.ask = lease.ask, lease.hand_on_until, None
