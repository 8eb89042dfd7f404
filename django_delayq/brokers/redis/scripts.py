"""The Lua scripts, one a move, and calls of them.

Operations are generators: they yield the calls of one round trip and are sent their replies, so that the same code
runs on a blocking and on an async connection (`links.py`).
"""

import hashlib
from collections.abc import Generator, Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

R = TypeVar("R")

Reply = Any  # what redis-py parses: int, bytes, None, or a list of them
Argument = str | bytes | int


class Script(NamedTuple):
    """One Lua script as it is sent: its parts from lua/lib, then itself."""

    name: str
    source: str
    sha: str


class Call(NamedTuple):
    """One command of a round trip: a script with keys and arguments, or a plain command in `arguments`."""

    script: Script | None
    keys: Sequence[str]
    arguments: Sequence[Argument]

    def command(self, *, with_source: bool) -> tuple[Argument, ...]:
        """The command for the wire; `with_source` for a server that does not have the script yet."""
        if self.script is None:
            return tuple(self.arguments)
        if with_source:
            return ("EVAL", self.script.source, len(self.keys), *self.keys, *self.arguments)
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.arguments)


class Replies(list[Reply]):
    """The replies of one round trip. After a repeat (`repeated`) a False answer may be ours: the first time did it."""

    def __init__(self, replies: Iterable[Reply] = (), *, repeated: bool = False) -> None:
        super().__init__(replies)
        self.repeated = repeated


Operation = Generator[list[Call], Replies, R]


def plain(*arguments: Argument) -> Call:
    """A plain command, for looks."""
    return Call(None, (), arguments)


@cache
def load(name: str) -> Script:
    """The script lua/<name>.lua with the parts that its first line names ("-- uses: record sets")."""
    folder = files(__package__) / "lua"
    text = (folder / f"{name}.lua").read_text()
    first, _, _ = text.partition("\n")
    parts = first.removeprefix("-- uses:").split() if first.startswith("-- uses:") else []
    source = "\n".join([*((folder / "lib" / f"{part}.lua").read_text() for part in parts), text])
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
