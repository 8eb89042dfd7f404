"""Who puts every alarm again: a new broker has none, and can't know which there should be."""

import threading
from itertools import count


class _Mine(threading.local):
    """The token of the lock that this thread took: two threads are two callers."""

    token = 0


class Rebuild:
    """Whether the alarms may be lost, and the lock of the caller that puts them again."""

    def __init__(self) -> None:
        self.alarms_lost = True
        self._tokens = count(1)
        self._mine = _Mine()
        self._token = 0
        self._until_ms = 0

    def begin(self, now_ms: int, lock_ms: int) -> bool:
        """Take the lock, or hold on to it. One that is lost is not taken again in the same call: see the protocol."""
        if self._mine.token:
            may = self._is_mine(now_ms)
            self._mine.token = self._token if may else 0
        else:
            may = self.alarms_lost and now_ms >= self._until_ms
            if may:
                self._mine.token = self._token = next(self._tokens)
        if may:
            self._until_ms = now_ms + lock_ms
        return may

    def end(self, now_ms: int) -> bool:
        """Give the lock up, with every alarm put."""
        ended = self._is_mine(now_ms)
        self._mine.token = 0
        if ended:
            self.alarms_lost = False
        return ended

    def _is_mine(self, now_ms: int) -> bool:
        return self._mine.token == self._token and now_ms < self._until_ms
