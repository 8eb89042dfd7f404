"""Many shards as one: the shard of an id, and operations on several shards in the same round trips.

Shards are independent: no script touches two, so that each may be on a node of its own.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from django_delayq.brokers.base import in_order
from django_delayq.brokers.redis.client import Operation, TransientError, gather, gather_available
from django_delayq.brokers.redis.keys import Keys

R = TypeVar("R")
T = TypeVar("T")
Operate = Callable[[Keys, Sequence[T]], Operation[R]]
"""Returns the operation of a shard on its own items."""


class Shards:
    """The shards of one broker. `first` also keeps what belongs to no shard."""

    def __init__(self, prefix: str, count: int) -> None:
        self.all = [Keys(prefix, shard) for shard in range(count)]
        self.first = self.all[0]

    def of(self, id: str) -> Keys:
        """Return the shard of a message's id, or of the pk of an alarm's row."""
        return self.all[zlib.crc32(id.encode()) % len(self.all)]

    def everywhere(self, operate: Callable[[Keys], Operation[R]]) -> Operation[list[R]]:
        """Run the operation on each shard, and return all answers."""
        return gather([operate(keys) for keys in self.all])

    def by_id(self, items: Sequence[T], id_of: Callable[[T], str], operate: Operate[T, list[R]]) -> Operation[list[R]]:
        """Run the operation, which answers for each item, on each shard with its own items.

        The answers are in the order of the items.
        """
        is_one = len(self.all) == 1
        return operate(self.first, items) if is_one else self._by_id(items, id_of, operate, gather)

    def by_id_available(
        self, items: Sequence[T], id_of: Callable[[T], str], operate: Operate[T, list[bool]]
    ) -> Operation[Sequence[bool | None]]:
        """Run the operation like `by_id`, with None as the answer for items on a node that is away."""
        is_one = len(self.all) == 1
        return operate(self.first, items) if is_one else self._by_id(items, id_of, operate, gather_available)

    def _by_id(
        self,
        items: Sequence[T],
        id_of: Callable[[T], str],
        operate: Operate[T, list[Any]],
        join: Callable[[Sequence[Operation[Any]]], Operation[Any]],
    ) -> Operation[list[Any]]:
        parts = self._parted(range(len(items)), lambda i: id_of(items[i]))
        answers = yield from join([operate(keys, [items[i] for i in own]) for keys, own in parts])
        found = [
            [None] * len(own) if isinstance(answer, TransientError) else answer
            for (_, own), answer in zip(parts, answers, strict=True)
        ]
        return in_order([own for _, own in parts], found)

    def parted(self, items: Sequence[T], id_of: Callable[[T], str], operate: Operate[T, R]) -> Operation[list[R]]:
        """Run the operation on each shard with its own items. Return an answer for each shard that has some."""
        return gather([operate(keys, own) for keys, own in self._parted(items, id_of)])

    def parted_available(
        self, items: Sequence[T], id_of: Callable[[T], str], operate: Operate[T, None]
    ) -> Operation[str]:
        """Run the operation like `parted`, where it can be. Return why some shards were not reached, or ''."""
        ended = yield from gather_available([operate(keys, own) for keys, own in self._parted(items, id_of)])
        return next((str(result) for result in ended if isinstance(result, TransientError)), "")

    def _parted(self, items: Iterable[T], id_of: Callable[[T], str]) -> list[tuple[Keys, list[T]]]:
        parts: dict[int, list[T]] = {}
        for item in items:
            parts.setdefault(self.of(id_of(item)).shard, []).append(item)
        return [(self.all[shard], own) for shard, own in parts.items()]
