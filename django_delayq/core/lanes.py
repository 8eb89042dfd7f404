"""Name the lanes of a queue: messages of one priority wait in a lane of their own. Pure: no Django, no I/O.

The lane of priority 0 has the name of the queue itself. The others are written `emails^10` or `emails^-5`. To the
brokers and the tables a lane is a queue like any other, so priorities cost nothing where nobody uses them.
"""

import re
from collections.abc import Collection, Iterable
from functools import lru_cache

from django_delayq.support.validation import check_new_name, check_priority, check_queue, short_repr

_LANE = re.compile(r"(.+)\^(-?(?:100|[1-9][0-9]?))", re.DOTALL)


def lane_of(queue: str, priority: int) -> str:
    """Return the name of the lane in which the messages of a queue and a priority wait."""
    return f"{queue}^{priority}" if priority else queue


@lru_cache(maxsize=1024)  # each attempt asks
def split_lane(lane: str) -> tuple[str, int]:
    """Return the queue that a lane belongs to, and the priority of its messages."""
    found = _LANE.fullmatch(lane)
    return (found[1], int(found[2])) if found else (lane, 0)


@lru_cache(maxsize=1024)  # each attempt asks
def queue_of(lane: str) -> str:
    """Return the queue that a lane belongs to."""
    return split_lane(lane)[0]


@lru_cache(maxsize=1024)  # each send asks
def priority_of(lane: str) -> int:
    """Return the priority of the messages in a lane."""
    return split_lane(lane)[1]


def new_lane(queue: str, priority: int) -> str:
    """Return the name of a lane like `lane_of`. Raises `TypeError` or `ValueError`, naming the value and the fix."""
    check_queue(queue, check_new_name)
    own, found = split_lane(queue)
    if found:
        raise ValueError(
            f"queue={short_repr(queue)} is how the messages of a priority are named; give "
            f"queue={short_repr(own)}, priority={found}."
        )
    return check_queue(lane_of(queue, check_priority(priority)))


def lanes_in(names: Iterable[str]) -> set[str]:
    """Return the names that are lanes of another priority than 0."""
    return {name for name in set(names) if priority_of(name)}


def lanes_of(queue: str, lanes: Iterable[str]) -> list[str]:
    """Return the queue itself and those of these lanes that belong to it, the highest priority first."""
    return sorted({queue, *(lane for lane in lanes if queue_of(lane) == queue)}, key=priority_of, reverse=True)


def serves(queues: Collection[str], lane: str) -> bool:
    """Return whether a worker of these queues runs the messages of a lane."""
    return lane in queues or queue_of(lane) in queues
