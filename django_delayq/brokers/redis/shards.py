"""Name the keys of each shard, load the scripts, and run operations on many shards.

All keys of a shard but `meta` share the hash tag {prefix:shard}, and no script touches two shards, so that each shard
may be on another node.
"""

import itertools
import secrets
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, TypeVar

from django_delayq.brokers.base import in_order
from django_delayq.brokers.redis.client import (
    Argument,
    Call,
    Operation,
    Script,
    TransientError,
    gather,
    gather_available,
)
from django_delayq.brokers.redis.signing import MessageSigner
from django_delayq.conf import Options

R = TypeVar("R")
T = TypeVar("T")


HEADER_BYTES = 8 * 1024
"""More bytes than a name or header of ours takes, or the state of a running message. lua/lib/cut.lua has the same."""
MOST_BYTES = Options().max_data + HEADER_BYTES


@dataclass(slots=True)
class Keys:
    """The keys of one shard. docs/internals/structures.md describes what each holds."""

    prefix: str
    shard: int = 0
    most_bytes: int = MOST_BYTES
    """The most bytes of a message that are read. A larger one fails, and its data stays in Redis."""
    signer: MessageSigner | None = None
    """Signs what is sent, if OPTIONS["sign"] says so."""
    checks_signatures: bool = False
    tag: str = field(init=False)
    msg: str = field(init=False)
    state: str = field(init=False)
    running: str = field(init=False)
    suspect: str = field(init=False)
    error: str = field(init=False)
    sets: str = field(init=False)
    again: str = field(init=False)
    timer: str = field(init=False)
    count: str = field(init=False)
    epoch: str = field(init=False)
    cursor: str = field(init=False)
    meta: str = field(init=False)
    channel: str = field(init=False)
    waits: str = field(init=False)  # the prefix of the keys of wait sets
    calls: str = field(init=False)  # the prefix of the keys of call cells

    def __post_init__(self) -> None:
        self.tag = f"{{{self.prefix}:{self.shard}}}:"
        for name in ("msg", "state", "running", "suspect", "error", "again", "timer", "count", "epoch", "cursor"):
            setattr(self, name, self.tag + name)
        self.sets = f"{self.tag}keys"
        self.channel = f"{self.tag}wake"
        self.waits, self.calls = f"{self.tag}wait:", f"{self.tag}call:"
        self.meta = f"{{{self.prefix}:meta}}"

    def wait(self, name: str) -> str:
        """Return the key of the wait set with this name ("queue:key")."""
        return self.waits + name

    def job(self, name: str) -> str:
        """Return the key of a Spark job's ledger: the ids that it has sent."""
        return f"{self.tag}job:{name}"


@dataclass(slots=True)
class LimitKeys:
    """The keys of one limit, all in one cluster slot."""

    prefix: str
    key: str
    value: str
    permits: str = field(init=False)
    line: str = field(init=False)
    _tag: str = field(init=False)

    def __post_init__(self) -> None:
        self._tag = tag = f"{{{self.prefix}:limit:{self.key}}}:"
        self.permits, self.line = f"{tag}permits:{self.value}", f"{tag}line:{self.value}"

    def turn_of(self, rate_value: str) -> str:
        """Return the key of the turn of a value of `rate_key`, or of the handler's only turn if that is ''."""
        return f"{self._tag}turn:{rate_value}" if rate_value else f"{self._tag}turn"


@lru_cache(4096)
def set_name(queue: str, key: str) -> str:
    """Return the name of a wait set in `keys`, `timer` and on the wake-up channel. No queue has a colon in its name."""
    return f"{queue}:{key}"


def names_of_sets(names: Iterable[bytes]) -> list[str]:
    """Return the names of wait sets as text, each once. Leave out names that are no text, which someone else wrote."""
    found = set()
    for name in names:
        with suppress(UnicodeDecodeError):
            found.add(name.decode())
    return sorted(found)


@cache
def load(name: str) -> Script:
    """Return the script lua/<name>.lua, preceded by the files of lua/lib/ that its first line names ("-- uses: …")."""
    folder = files(__package__) / "lua"
    text = (folder / f"{name}.lua").read_text()
    first, _, _ = text.partition("\n")
    parts = first.removeprefix("-- uses:").split() if first.startswith("-- uses:") else []
    return Script.of(name, "\n".join([*((folder / "lib" / f"{part}.lua").read_text() for part in parts), text]))


def read(command: str, key: str, *arguments: Argument, most: int = HEADER_BYTES) -> Call:
    """Return a call of a command that reads a key. Each text of its reply is cut to `most` bytes.

    Use it for all replies with texts that someone else may have written.
    """
    return Call(load("read"), (key,), (most, command, *arguments))


class CallCells:
    """The call cells of one process, which remember the answers to calls in flight: see lua/lib/call.lua.

    A cell serves one call at a time and is then used again, so that Redis keeps few of them.
    """

    def __init__(self) -> None:
        self._process = secrets.token_hex(6)
        self._names = itertools.count()
        self._numbers: deque[int] = deque()
        self._free: deque[str] = deque()

    def number(self) -> int:
        """Return a number that no other call has. Nobody can guess it, so nobody can leave an answer for it."""
        try:
            return self._numbers.pop()
        except IndexError:
            self._numbers.extend(
                memoryview(secrets.token_bytes(4096)).cast("Q")
            )  # many, because each draw asks the system
            return self._numbers.pop()

    def take(self) -> str:
        """Return the name of a cell that no other call uses until it is released."""
        try:
            return self._free.pop()
        except IndexError:
            return f"{self._process}-{next(self._names)}"

    def release(self, names: Iterable[str]) -> None:
        """Free the cells of calls that have ended, in success or failure."""
        self._free.extend(names)


Operate = Callable[[Keys, Sequence[T]], Operation[R]]
"""A function that returns an operation on one shard, given its keys and the items that belong to it."""


class Shards:
    """The shards of one alias. The first one also has the data that belong to no shard, under `meta`."""

    def __init__(self, prefix: str, count: int, max_data: int = Options().max_data, sign: bool | str = False) -> None:
        signer = MessageSigner(prefix) if sign else None
        self.all = [
            Keys(prefix, shard, max_data + HEADER_BYTES, signer, checks_signatures=sign is True)
            for shard in range(count)
        ]
        self.first = self.all[0]

    def of(self, id: str) -> Keys:
        """Return the shard of a message's id, or of the pk of an alarm's row."""
        return self.all[zlib.crc32(id.encode()) % len(self.all)]

    def everywhere(self, operate: Callable[[Keys], Operation[R]]) -> Operation[list[R]]:
        """Run an operation on each shard, and return all results."""
        return gather([operate(keys) for keys in self.all])

    def by_id(self, items: Sequence[T], id_of: Callable[[T], str], operate: Operate[T, list[R]]) -> Operation[list[R]]:
        """Run an operation on each shard with the items that belong to it. The operation has a result for each item.

        Return the results in the order of the items.
        """
        is_one = len(self.all) == 1
        return operate(self.first, items) if is_one else self._by_id(items, id_of, operate, gather)

    def by_id_available(
        self, items: Sequence[T], id_of: Callable[[T], str], operate: Operate[T, list[Any]]
    ) -> Operation[Sequence[Any]]:
        """Run an operation like `by_id`, with None as the result for items on a node that is away."""
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
        """Run an operation on each shard that has items, with those items. Return a result for each of these shards."""
        return gather([operate(keys, own) for keys, own in self._parted(items, id_of)])

    def parted_available(
        self, items: Sequence[T], id_of: Callable[[T], str], operate: Operate[T, None]
    ) -> Operation[str]:
        """Run an operation like `parted` on the shards that can be reached.

        Return why others could not be reached; "" if all could.
        """
        ended = yield from gather_available([operate(keys, own) for keys, own in self._parted(items, id_of)])
        return next((str(result) for result in ended if isinstance(result, TransientError)), "")

    def _parted(self, items: Iterable[T], id_of: Callable[[T], str]) -> list[tuple[Keys, list[T]]]:
        parts: dict[int, list[T]] = {}
        for item in items:
            parts.setdefault(self.of(id_of(item)).shard, []).append(item)
        return [(self.all[shard], own) for shard, own in parts.items()]
