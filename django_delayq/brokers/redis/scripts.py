"""Load the Lua scripts of this package, and name the cells that remember the answers of their calls."""

import itertools
import secrets
from collections import deque
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from django_delayq.brokers.redis.client import Script


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
