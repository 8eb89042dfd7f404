"""The queues that a worker is asked to serve: which come first, and in which parts others share its hands."""

from collections.abc import Sequence
from typing import NamedTuple

from django_delayq.values import check_queue, shown

MOST_WEIGHT = 1_000


class ServedQueue(NamedTuple):
    """A queue; one without a weight comes before all that follow it."""

    name: str
    weight: int | None = None

    def __str__(self) -> str:
        return self.name if self.weight is None else f"{self.name}:{self.weight}"


def served_queues(text: str) -> tuple[ServedQueue, ...]:
    """What is written as `critical,default:3,bulk:1`. Raises `ValueError` naming the value and the fix."""
    parts = [part.strip() for part in text.split(",")]
    if not any(parts):
        raise ValueError(f"{shown(text)} names no queue; write --queues mail,orders")
    if not all(parts):
        raise ValueError(f"{shown(text)} has a comma without a queue; leave the comma out, or name the queue")
    queues = tuple(map(_served_queue, parts))
    names = [queue.name for queue in queues]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{shown(text)} names the queue {name!r} more than once; leave one of them out")
    return queues


def _served_queue(text: str) -> ServedQueue:
    name, colon, weight = text.partition(":")
    check_queue(name)
    if not colon:
        return ServedQueue(name)
    if not (weight.isascii() and weight.isdigit() and 1 <= int(weight[:5]) <= MOST_WEIGHT):
        raise ValueError(
            f"{shown(text)} gives the queue {name!r} the weight {shown(weight)}; "
            f"give a whole number from 1 to {MOST_WEIGHT}, such as {name}:3, or none"
        )
    return ServedQueue(name, int(weight))


class Order:
    """The order of the queues at one claim after another.

    Queues in a row that have weights are a group, and one without is a group of its own. Groups come in the order in
    which they were asked for. Within one the queue that has had the least for its weight comes first, as in start-time
    fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): each has a tag that grows by what it is given over its weight.
    Who had nothing to claim at its turn is brought up to the others, and saves up nothing for later.
    """

    def __init__(self, queues: Sequence[ServedQueue]) -> None:
        self._groups: list[dict[str, int]] = []
        self._tags = {queue.name: 0.0 for queue in queues}
        was_weighted = False
        for name, weight in queues:
            if weight is None or not was_weighted:
                self._groups.append({})
            self._groups[-1][name] = weight or 1
            was_weighted = weight is not None

    def names(self) -> list[str]:
        """All of them, in the order of the next claim; empty where no order was asked for."""
        return [name for group in self._groups for name in sorted(group, key=self._tags.__getitem__)]

    def note(self, name: str, count: int) -> None:
        """So many messages of a queue were claimed."""
        group = next(group for group in self._groups if name in group)
        begun = self._tags[name]
        for other in group:
            self._tags[other] = max(self._tags[other], begun)
        self._tags[name] = begun + count / group[name]
