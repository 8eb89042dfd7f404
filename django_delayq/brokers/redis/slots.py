"""Slots of calls in flight: see lua/lib/call.lua. A slot is used by one call at a time, and then again."""

import itertools
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Slots:
    """The slots of one process. As many as calls were ever in flight at once, so that Redis keeps few."""

    def __init__(self) -> None:
        self._process = secrets.token_hex(6)
        self._names = itertools.count()
        self._numbers = itertools.count(1)
        self._free: deque[str] = deque()

    def number(self) -> int:
        """A number that no call of this process had before."""
        return next(self._numbers)

    @contextmanager
    def taken(self, count: int) -> Iterator[list[str]]:
        """`count` slots that nobody else uses meanwhile."""
        names = [self._take() for _ in range(count)]
        try:
            yield names
        finally:
            self._free.extend(names)

    def _take(self) -> str:
        try:
            return self._free.pop()
        except IndexError:
            return f"{self._process}-{next(self._names)}"
