"""The queues that a worker is asked to serve: which come first, and how the others share its slots."""

from collections.abc import Iterable
from itertools import groupby
from random import Random
from typing import NamedTuple

from django_delayq.support.validation import check_queue, short_repr

MOST_WEIGHT = 1_000


class ServedQueue(NamedTuple):
    """A queue; one without a weight comes before all that follow it."""

    name: str
    weight: int | None = None

    def __str__(self) -> str:
        return self.name if self.weight is None else f"{self.name}:{self.weight}"


def served_queues(text: str) -> tuple[ServedQueue, ...]:
    """Parse queues written as `critical,default:3,bulk:1`. Raises `ValueError` naming the value and the fix."""
    parts = [part.strip() for part in text.split(",")]
    if not any(parts):
        raise ValueError(f"{short_repr(text)} names no queue; write --queues mail,orders")
    if not all(parts):
        raise ValueError(f"{short_repr(text)} has a comma without a queue; leave the comma out, or name the queue")
    queues = tuple(map(_served_queue, parts))
    names = [queue.name for queue in queues]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{short_repr(text)} names the queue {name!r} more than once; leave one of them out")
    return queues


def _served_queue(text: str) -> ServedQueue:
    name, colon, weight = text.partition(":")
    check_queue(name)
    if not colon:
        return ServedQueue(name)
    if not (weight.isascii() and weight.isdigit() and 1 <= int(weight[:5]) <= MOST_WEIGHT):
        raise ValueError(
            f"{short_repr(text)} gives the queue {name!r} the weight {short_repr(weight)}; "
            f"give a whole number from 1 to {MOST_WEIGHT}, such as {name}:3, or none"
        )
    return ServedQueue(name, int(weight))


def claim_order(queues: Iterable[ServedQueue], random: Random) -> list[str]:
    """Return the names of the queues in the order in which the next claim asks them.

    Neighbours with weights are put in a random order: each comes first with the probability of its weight over the sum
    of their weights, then each of the others likewise.
    """
    names: list[str] = []
    for is_weighted, group in groupby(queues, key=lambda queue: queue.weight is not None):
        neighbours = list(group)
        if is_weighted:  # an exponential time is the least with the probability of its rate over the sum of the rates
            neighbours.sort(key=lambda queue: random.expovariate(queue.weight or 1))
        names += [queue.name for queue in neighbours]
    return names
