"""The Lua scripts, and the calls that operations make of them.

Operations are generators: they yield the calls of one round trip and are sent their replies, so that the same code runs
on a blocking and on an async connection (`client.py`).
"""

import hashlib
from collections.abc import Generator, Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

from django_delayq.brokers.redis.client.errors import TransientError
from django_delayq.core.errors import BrokerUnavailable

R = TypeVar("R")

Reply = Any  # what redis-py parses: int, bytes, None, or a list of them
Argument = str | bytes | int


class Script(NamedTuple):
    """One Lua script as it is sent: its parts from lua/lib, then its own text."""

    name: str
    source: str
    sha: str


class Call(NamedTuple):
    """One command of a round trip: a script with keys and arguments, or a plain command in `arguments`.

    In a cluster it goes to the node of its first key. A call without keys waits for what the other calls of its round
    trip do, on each node that these go to: the least answer counts, and an error is an answer.
    """

    script: Script | None
    keys: Sequence[str]
    arguments: Sequence[Argument]

    @property
    def name(self) -> str:
        """Return its name for people: the script's file, or the command, with its key where it names one."""
        if self.script is not None:
            return f"{self.script.name}.lua"
        return " ".join(map(str, self.arguments[:2] if self.arguments[1:2] == (*self.keys,) else self.arguments[:1]))

    def command(self, *, with_source: bool) -> tuple[Argument, ...]:
        """Return the command for the wire; `with_source` for a server that does not have the script yet."""
        if self.script is None:
            return tuple(self.arguments)
        if with_source:
            return ("EVAL", self.script.source, len(self.keys), *self.keys, *self.arguments)
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.arguments)


class Replies(list[Reply]):
    """The replies of one round trip. After a repeat (`repeated`) a False answer may be due to the first call.

    In a cluster a reply may be the error of a server that is away (`is_partial`).
    """

    def __init__(
        self, replies: Iterable[Reply] = (), *, repeated: Iterable[int] = (), is_partial: bool = False
    ) -> None:
        super().__init__(replies)
        self.is_partial = is_partial
        self._repeated = frozenset(repeated)

    @property
    def repeated(self) -> bool:
        """Return whether one of the calls was made again after its answer was lost."""
        return bool(self._repeated)

    def part(self, start: int, count: int) -> "Replies":
        """Return the replies to `count` calls from `start` on."""
        replies = self[start : start + count]
        if not self._repeated and not self.is_partial:
            return Replies(replies)
        repeated = [i - start for i in self._repeated if start <= i < start + count]
        is_partial = self.is_partial and any(isinstance(reply, BrokerUnavailable) for reply in replies)
        return Replies(replies, repeated=repeated, is_partial=is_partial)


Operation = Generator[list[Call], Replies, R]


class PartialFailure(TransientError):
    """Thrown into an operation when only some of its calls were answered: `replies` has errors for the others."""

    def __init__(self, replies: Replies) -> None:
        super().__init__(str(next(reply for reply in replies if isinstance(reply, BrokerUnavailable))))
        self.replies = replies


class SkipUnavailable(list[Call]):
    """The calls of one round trip that waits for no server of a cluster that is known to be away."""


def proceed(operation: Operation[R], replies: Replies) -> list[Call]:
    """Give an operation its replies, and return the calls that it makes next."""
    return operation.throw(PartialFailure(replies)) if replies.is_partial else operation.send(replies)


def plain(*arguments: Argument) -> Call:
    """Return a plain command whose first argument is a key, for queries."""
    return Call(None, (str(arguments[1]),), arguments)


def beside(key: str, *arguments: Argument) -> Call:
    """Return a plain command that names no key, for the node that has this one."""
    return Call(None, (key,), arguments)


@cache
def load(name: str) -> Script:
    """Return the script lua/<name>.lua with the parts that its first line names ("-- uses: record sets")."""
    folder = files("django_delayq.brokers.redis") / "lua"
    text = (folder / f"{name}.lua").read_text()
    first, _, _ = text.partition("\n")
    parts = first.removeprefix("-- uses:").split() if first.startswith("-- uses:") else []
    source = "\n".join([*((folder / "lib" / f"{part}.lua").read_text() for part in parts), text])
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
