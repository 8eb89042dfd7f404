"""The slots that remember the answers to calls in flight: see lua/lib/call.lua. A slot serves one call at a time."""

import itertools
import secrets
from collections import deque
from collections.abc import Iterable


class Slots:
    """The slots of one process: as many as calls were ever in flight at once, so that Redis keeps few."""

    def __init__(self) -> None:
        self._process = secrets.token_hex(6)
        self._names = itertools.count()
        self._numbers = itertools.count(1)
        self._free: deque[str] = deque()

    def number(self) -> int:
        """Return a number that no call of this process had before."""
        return next(self._numbers)

    def take(self) -> str:
        """Return a slot that nobody else uses until it is given back."""
        try:
            return self._free.pop()
        except IndexError:
            return f"{self._process}-{next(self._names)}"

    def give_back(self, names: Iterable[str]) -> None:
        """Free the slots of calls that have ended, whatever came of them."""
        self._free.extend(names)
