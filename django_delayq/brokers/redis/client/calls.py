"""Define calls, the operations that make them, and their replies.

An operation is a generator: it yields the calls of one round trip and is sent their replies. So the same code runs on
blocking and on async connections. Operations that run side by side (`gather`) share their round trips.
"""

import hashlib
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import Any, NamedTuple, Self, TypeVar, cast

from django_delayq.brokers.redis.client.errors import TransientError
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.support.timestamps import LAST_MS

R = TypeVar("R")

Reply = Any  # what redis-py parses: int, bytes, None, or a list of them
Argument = str | bytes | int


class Script(NamedTuple):
    """One Lua script, as it is sent."""

    name: str
    source: str
    sha: str

    @classmethod
    def of(cls, name: str, source: str) -> Self:
        """Return a script, with the SHA-1 of its source."""
        return cls(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


class Call(NamedTuple):
    """One command of a round trip: a script with keys and arguments, or a plain command in `arguments`.

    In a cluster it goes to the node of its first key. A call without keys is a WAIT for the writes of its round trip:
    it goes to each node to which the other calls go. Its reply is an error if one node replies with an error, and
    otherwise the lowest number.
    """

    script: Script | None
    keys: Sequence[str]
    arguments: Sequence[Argument]

    @property
    def name(self) -> str:
        """Return a name for people: the script's file, or the command, with its first argument if that is its key."""
        if self.script is not None:
            return f"{self.script.name}.lua"
        return " ".join(map(str, self.arguments[:2] if self.arguments[1:2] == (*self.keys,) else self.arguments[:1]))


def plain(*arguments: Argument) -> Call:
    """Return a plain command whose first argument is a key."""
    return Call(None, (str(arguments[1]),), arguments)


def colocated(key: str, *arguments: Argument) -> Call:
    """Return a plain command without a key, for the node that has `key`."""
    return Call(None, (key,), arguments)


# Reading replies. Someone else may have written anything under our keys.


def as_int(text: bytes) -> int:
    """Return a score, a due time or a total as an integer; 0 if it is no finite number."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return int(float(text))
    except (OverflowError, ValueError):
        return 0


def as_ms(text: bytes) -> int:
    """Return a score or a due time as epoch ms that can be shown as a date."""
    return min(max(as_int(text), 0), LAST_MS)


def clock_ms(reply: list[bytes]) -> int:
    """Return a reply of TIME in ms."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


def pairs(reply: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return a flat reply as pairs: the fields of a hash, or the members and scores of a zset."""
    return list(zip(reply[::2], reply[1::2], strict=True))


class SkipUnavailable(list[Call]):
    """The calls of one round trip that does not wait for servers of a cluster that are known to be away."""


class Replies(list[Reply]):
    """The replies of one round trip.

    If calls were `repeated`, a reply may say that nothing was left to do, because the first call has done it. If
    `is_partial`, some replies are the errors of nodes of a cluster that are away.
    """

    is_partial = False
    repeated_at: Collection[int] = ()

    @property
    def repeated(self) -> bool:
        """Return whether one of the calls was made again, after a first time that may have taken effect."""
        return bool(self.repeated_at)

    def part(self, start: int, count: int) -> "Replies":
        """Return the replies to `count` calls from `start` on."""
        part = Replies(self[start : start + count])
        if self.repeated_at:
            part.repeated_at = [i - start for i in self.repeated_at if start <= i < start + count]
        part.is_partial = self.is_partial and any(isinstance(reply, BrokerUnavailable) for reply in part)
        return part


Operation = Generator[list[Call], Replies, R]


def ask(call: Call) -> Operation[Reply]:
    """Make one call, and return its reply."""
    (reply,) = yield [call]
    return reply


class PartialFailure(TransientError):
    """The error that is thrown into an operation if some of its calls were not answered.

    `replies` has the replies, and errors for those calls.
    """

    def __init__(self, replies: Replies) -> None:
        super().__init__(str(next(reply for reply in replies if isinstance(reply, BrokerUnavailable))))
        self.replies = replies


def gather(operations: Sequence[Operation[R]]) -> Operation[list[R]]:
    """Run operations side by side, and return their results in order.

    Each round trip has the calls of all operations that have not ended. If the node of one is away, the others are run
    to their ends before its error is raised.
    """
    ended = yield from _side_by_side(operations, list)
    for result in ended:
        if isinstance(result, TransientError):
            raise result
    return cast(list[R], ended)


def gather_available(operations: Sequence[Operation[R]]) -> Operation[list[R | TransientError]]:
    """Run operations like `gather`, but return the error of an operation whose node is away, and don't wait for it."""
    return _side_by_side(operations, SkipUnavailable)


def split(ended: Sequence[R | TransientError]) -> tuple[list[R], str]:
    """Return the results, and the text of the first error; "" if there is none. Raises it if there are only errors."""
    results = [result for result in ended if not isinstance(result, TransientError)]
    errors = [result for result in ended if isinstance(result, TransientError)]
    if errors and not results:
        raise errors[0]
    return results, str(errors[0]) if errors else ""


def or_default(operation: Operation[R], default: R) -> Operation[R]:
    """Return the operation's result, or the default if its node is away. Does not wait for that node."""
    (result,) = yield from gather_available([operation])
    return default if isinstance(result, TransientError) else result


def _proceed(operation: Operation[R], replies: Replies) -> list[Call]:
    """Give an operation its replies, and return its next calls."""
    return operation.throw(PartialFailure(replies)) if replies.is_partial else operation.send(replies)


def _side_by_side(
    operations: Sequence[Operation[R]], round_trip: Callable[[Iterable[Call]], list[Call]]
) -> Operation[list[R | TransientError]]:
    ended: dict[int, R | TransientError] = {}
    answers: dict[int, Replies | None] = dict.fromkeys(range(len(operations)))
    try:
        while True:
            asking: dict[int, list[Call]] = {}
            for i, answer in answers.items():
                try:
                    asking[i] = next(operations[i]) if answer is None else _proceed(operations[i], answer)
                except StopIteration as stop:
                    ended[i] = stop.value
                except TransientError as error:
                    ended[i] = error
            if not asking:
                return [ended[i] for i in range(len(operations))]
            try:
                replies = yield round_trip(call for calls in asking.values() for call in calls)
            except PartialFailure as partly:
                replies = partly.replies
            start, answers = 0, {}
            for i, calls in asking.items():
                answers[i] = replies.part(start, len(calls))
                start += len(calls)
    finally:
        for operation in operations:
            operation.close()
