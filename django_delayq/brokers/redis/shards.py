"""Many shards as one: the shard of an id, and operations on several shards in the same round trips.

Shards are independent: no script touches two, so that each may be on a node of its own.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, cast

from django_delayq.brokers.base import in_order
from django_delayq.brokers.redis.client.calls import Call, Operation, PartialFailure, Replies, SkipUnavailable, proceed
from django_delayq.brokers.redis.client.errors import TransientError
from django_delayq.brokers.redis.keys import Keys

R = TypeVar("R")
T = TypeVar("T")


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
        return together([operate(keys) for keys in self.all])

    def by_id(
        self, items: Sequence[T], id_of: Callable[[T], str], operate: Callable[[Keys, Sequence[T]], Operation[list[R]]]
    ) -> Operation[list[R]]:
        """Run the operation, which answers for each item, on each shard with its own items.

        The answers are in the order of the items.
        """
        if len(self.all) == 1:
            return operate(self.first, items)
        return cast(Operation[list[R]], self._by_id(items, id_of, operate, together))

    def by_id_reached(
        self,
        items: Sequence[T],
        id_of: Callable[[T], str],
        operate: Callable[[Keys, Sequence[T]], Operation[list[bool]]],
    ) -> Operation[Sequence[bool | None]]:
        """Run the operation like `by_id`, with None as the answer for items on a node that is away."""
        if len(self.all) == 1:
            return operate(self.first, items)
        return self._by_id(items, id_of, operate, reached)

    def _by_id(
        self,
        items: Sequence[T],
        id_of: Callable[[T], str],
        operate: Callable[[Keys, Sequence[T]], Operation[list[R]]],
        join: Callable[[Sequence[Operation[list[R]]]], Operation[Sequence[list[R] | TransientError]]],
    ) -> Operation[list[R | None]]:
        positions = self._parted(range(len(items)), lambda i: id_of(items[i]))
        answers = yield from join([operate(keys, [items[i] for i in own]) for keys, own in positions])
        told: list[Sequence[R | None]] = [
            [None] * len(own) if isinstance(answer, TransientError) else answer
            for (_, own), answer in zip(positions, answers, strict=True)
        ]
        return in_order([own for _, own in positions], told)

    def parted(
        self, items: Sequence[T], id_of: Callable[[T], str], operate: Callable[[Keys, Sequence[T]], Operation[R]]
    ) -> Operation[list[R]]:
        """Run the operation on each shard with its own items. Return an answer for each shard that has some."""
        return together([operate(keys, own) for keys, own in self._parted(items, id_of)])

    def parted_reached(
        self, items: Sequence[T], id_of: Callable[[T], str], operate: Callable[[Keys, Sequence[T]], Operation[None]]
    ) -> Operation[str]:
        """Run the operation like `parted`, where it can be. Return why some shards were not reached, or ''."""
        ended = yield from reached([operate(keys, own) for keys, own in self._parted(items, id_of)])
        return next((str(result) for result in ended if isinstance(result, TransientError)), "")

    def _parted(self, items: Iterable[T], id_of: Callable[[T], str]) -> list[tuple[Keys, list[T]]]:
        parts: dict[int, list[T]] = {}
        for item in items:
            parts.setdefault(self.of(id_of(item)).shard, []).append(item)
        return [(self.all[shard], own) for shard, own in parts.items()]


def together(operations: Sequence[Operation[R]]) -> Operation[list[R]]:
    """Run operations side by side, and return their results in order.

    A round trip carries the calls of all operations that still ask. If the node of one is away, the others are run to
    their ends before that error is raised.
    """
    ended = yield from _side_by_side(operations, list)
    for result in ended:
        if isinstance(result, TransientError):
            raise result
    return cast(list[R], ended)


def reached(operations: Sequence[Operation[R]]) -> Operation[list[R | TransientError]]:
    """Run operations like `together`, but return the error of one whose node is away, and don't wait for it."""
    return _side_by_side(operations, SkipUnavailable)


def there(ended: Sequence[R | TransientError]) -> tuple[list[R], str]:
    """Return the results that were reached, and why the rest was not, or ''. Raises that error if none was."""
    results = [result for result in ended if not isinstance(result, TransientError)]
    errors = [result for result in ended if isinstance(result, TransientError)]
    if errors and not results:
        raise errors[0]
    return results, str(errors[0]) if errors else ""


def if_there(operation: Operation[R], otherwise: R) -> Operation[R]:
    """Return the operation's answer, or `otherwise` while the node that it asks is away. Does not wait for it."""
    (result,) = yield from reached([operation])
    return otherwise if isinstance(result, TransientError) else result


def _side_by_side(
    operations: Sequence[Operation[R]], round_trip: Callable[[Iterable[Call]], list[Call]]
) -> Operation[list[R | TransientError]]:
    ended: dict[int, R | TransientError] = {}
    asking: dict[int, list[Call]] = {}

    def go_on(i: int, replies: Replies | None) -> None:
        try:
            asking[i] = next(operations[i]) if replies is None else proceed(operations[i], replies)
        except StopIteration as stop:
            asking.pop(i, None)
            ended[i] = stop.value
        except TransientError as error:
            asking.pop(i, None)
            ended[i] = error

    try:
        for i in range(len(operations)):
            go_on(i, None)
        while asking:
            try:
                replies = yield round_trip(call for calls in asking.values() for call in calls)
            except PartialFailure as partly:
                replies = partly.replies
            start = 0
            for i, calls in list(asking.items()):
                go_on(i, replies.part(start, len(calls)))
                start += len(calls)
    finally:
        for operation in operations:
            operation.close()
    return [ended[i] for i in range(len(operations))]
