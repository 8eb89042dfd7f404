"""The shards of a Redis: the names of everything that we keep in each, the scripts that work on it, and many as one.

All keys of a shard but `meta` share the hash tag {prefix:shard}, and no script touches two shards, so that each may be
on a node of its own.
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
from django_delayq.brokers.redis.client import Operation, Script, TransientError, gather, gather_available

R = TypeVar("R")
T = TypeVar("T")


@dataclass(slots=True)
class Keys:
    """The keys of one shard. docs/internals describes what each holds."""

    prefix: str
    shard: int = 0
    tag: str = field(init=False)
    msg: str = field(init=False)
    state: str = field(init=False)
    running: str = field(init=False)
    suspect: str = field(init=False)
    error: str = field(init=False)
    sets: str = field(init=False)
    timer: str = field(init=False)
    count: str = field(init=False)
    epoch: str = field(init=False)
    cursor: str = field(init=False)
    meta: str = field(init=False)
    channel: str = field(init=False)
    waits: str = field(init=False)  # before the name of a wait set
    calls: str = field(init=False)  # before the cell that remembers the answer to one call in flight

    def __post_init__(self) -> None:
        self.tag = f"{{{self.prefix}:{self.shard}}}:"
        for name in ("msg", "state", "running", "suspect", "error", "timer", "count", "epoch", "cursor"):
            setattr(self, name, self.tag + name)
        self.sets = f"{self.tag}keys"
        self.channel = f"{self.tag}wake"
        self.waits, self.calls = f"{self.tag}wait:", f"{self.tag}call:"
        self.meta = f"{{{self.prefix}:meta}}"

    def wait(self, name: str) -> str:
        """Return the key of the wait set of a name ("queue:key")."""
        return self.waits + name

    def job(self, name: str) -> str:
        """Return the key of a job's ledger: the ids that it has sent."""
        return f"{self.tag}job:{name}"


@dataclass(slots=True)
class LimitKeys:
    """The keys of one limit, all in one cluster slot."""

    prefix: str
    key: str
    value: str
    permits: str = field(init=False)
    line: str = field(init=False)
    turn: str = field(init=False)

    def __post_init__(self) -> None:
        tag = f"{{{self.prefix}:limit:{self.key}}}:"
        self.permits, self.line, self.turn = f"{tag}permits:{self.value}", f"{tag}line:{self.value}", f"{tag}turn"


@lru_cache(4096)
def set_name(queue: str, key: str) -> str:
    """Return the name of a wait set in `keys`, in `timer` and on the wake-up channel. A queue has no colon in it."""
    return f"{queue}:{key}"


def names_of_sets(names: Iterable[bytes]) -> list[str]:
    """Return the names of wait sets that are ours, each once. A name that is no text is someone else's."""
    found = set()
    for name in names:
        with suppress(UnicodeDecodeError):
            found.add(name.decode())
    return sorted(found)


@cache
def load(name: str) -> Script:
    """Return the script lua/<name>.lua with the parts that its first line names ("-- uses: record sets")."""
    folder = files(__package__) / "lua"
    text = (folder / f"{name}.lua").read_text()
    first, _, _ = text.partition("\n")
    parts = first.removeprefix("-- uses:").split() if first.startswith("-- uses:") else []
    return Script.of(name, "\n".join([*((folder / "lib" / f"{part}.lua").read_text() for part in parts), text]))


class CallCells:
    """The cells of one process, which remember the answers to calls in flight: see lua/lib/call.lua.

    A cell serves one call at a time. There are as many as calls were ever in flight at once, so that Redis keeps few.
    """

    def __init__(self) -> None:
        self._process = secrets.token_hex(6)
        self._names = itertools.count()
        self._numbers = itertools.count(1)
        self._free: deque[str] = deque()

    def number(self) -> int:
        """Return a number that no call of this process had before."""
        return next(self._numbers)

    def take(self) -> str:
        """Return a cell that nobody else uses until it is released."""
        try:
            return self._free.pop()
        except IndexError:
            return f"{self._process}-{next(self._names)}"

    def release(self, names: Iterable[str]) -> None:
        """Free the cells of calls that have ended, whatever came of them."""
        self._free.extend(names)


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
