"""Many shards as one: which shard an id belongs to, and operations on several of them in the same round trips.

Shards are independent: no script touches two, so that each may be on a node of its own.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.scripts import Call, Operation, Replies

R = TypeVar("R")
T = TypeVar("T")


class Shards:
    """The shards of one broker. `first` is also where what belongs to none is said."""

    def __init__(self, prefix: str, count: int) -> None:
        self.all = [Keys(prefix, shard) for shard in range(count)]
        self.first = self.all[0]

    def of(self, id: str) -> Keys:
        """The shard of a message's id, or of the pk of an alarm's row."""
        return self.all[zlib.crc32(id.encode()) % len(self.all)]

    def everywhere(self, operate: Callable[[Keys], Operation[R]]) -> Operation[list[R]]:
        """What the operation answers on each shard."""
        return together([operate(keys) for keys in self.all])

    def by_id(
        self, items: Sequence[T], id_of: Callable[[T], str], operate: Callable[[Keys, Sequence[T]], Operation[list[R]]]
    ) -> Operation[list[R]]:
        """The operation, which answers for each item, on each shard with its own: the answers in the order given."""
        if len(self.all) == 1:
            return operate(self.first, items)
        return self._by_id(items, id_of, operate)

    def _by_id(
        self, items: Sequence[T], id_of: Callable[[T], str], operate: Callable[[Keys, Sequence[T]], Operation[list[R]]]
    ) -> Operation[list[R]]:
        positions = self._parted(range(len(items)), lambda i: id_of(items[i]))
        answers = yield from together([operate(keys, [items[i] for i in own]) for keys, own in positions])
        by_position = {
            i: answer
            for (_, own), given in zip(positions, answers, strict=True)
            for i, answer in zip(own, given, strict=True)
        }
        return [by_position[i] for i in range(len(items))]

    def parted(
        self, items: Sequence[T], id_of: Callable[[T], str], operate: Callable[[Keys, Sequence[T]], Operation[R]]
    ) -> Operation[list[R]]:
        """The operation on each shard with its own of the items: an answer for each shard that has some."""
        return together([operate(keys, own) for keys, own in self._parted(items, id_of)])

    def _parted(self, items: Iterable[T], id_of: Callable[[T], str]) -> list[tuple[Keys, list[T]]]:
        parts: dict[int, list[T]] = {}
        for item in items:
            parts.setdefault(self.of(id_of(item)).shard, []).append(item)
        return [(self.all[shard], own) for shard, own in parts.items()]


def together(operations: Sequence[Operation[R]]) -> Operation[list[R]]:
    """Operations side by side: a round trip carries the calls of all that still ask. Their results, in order."""
    results: dict[int, R] = {}
    asking: dict[int, list[Call]] = {}

    def proceed(i: int, replies: Replies | None) -> None:
        try:
            asking[i] = next(operations[i]) if replies is None else operations[i].send(replies)
        except StopIteration as stop:
            asking.pop(i, None)
            results[i] = stop.value

    try:
        for i in range(len(operations)):
            proceed(i, None)
        while asking:
            replies = yield [call for calls in asking.values() for call in calls]
            rest = iter(replies)
            for i, calls in list(asking.items()):
                proceed(i, Replies(islice(rest, len(calls)), repeated=replies.repeated))
    finally:
        for operation in operations:
            operation.close()
    return [results[i] for i in range(len(operations))]
