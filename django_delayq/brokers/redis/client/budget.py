"""The retry budget of one operation: how long it goes on trying."""

import socket
import time
from collections.abc import Callable
from typing import cast

import redis
from redis.connection import AbstractConnection

from django_delayq.brokers.redis.client.errors import TransientError

BUDGET = 2.0
"""Seconds that one round trip may take in all, repeats included; and an operation that has no other budget."""

Lost = Callable[[str], Exception]
"""Returns the error, given the reason, for a call without an answer in time; it may have been done all the same."""


class RetryBudget:
    """The retry budget of one operation, in seconds."""

    def __init__(self, budget: float, lost: Lost) -> None:
        self.lost = lost
        self._until = self._give_up_at = time.monotonic() + budget
        self._is_short = budget < BUDGET
        self._pause = 0.01
        self._reason: str | None = None

    def begin(self) -> None:
        """Begin a round trip."""
        self._give_up_at = min(self._until, time.monotonic() + BUDGET)

    @property
    def left(self) -> float:
        """Return the seconds that are left of the round trip."""
        return self._give_up_at - time.monotonic()

    @property
    def longest_wait(self) -> float:
        """Return the seconds that one wait for the server may take. Raises `TimeoutError` when a short one is over."""
        return self.at_most(BUDGET) if self._is_short else BUDGET

    def at_most(self, seconds: float) -> float:
        """Return `seconds`, or the time that is left of the round trip. Raises `TimeoutError` when it is over."""
        left = self.left
        if left <= 0:
            raise redis.TimeoutError("it took too long")
        return min(left, seconds)

    def limit(self, connection: AbstractConnection) -> None:
        """Let the connection's next wait end in time: its own time-out would outlast a short budget."""
        if self._is_short:
            _socket_of(connection).settimeout(self.longest_wait)

    def lift(self, connection: AbstractConnection) -> None:
        """Undo `limit`, for the next user of the connection."""
        if self._is_short:
            _socket_of(connection).settimeout(BUDGET)

    def next_pause(self) -> float | None:
        """Return the seconds to wait before a call is repeated; None when the time is over."""
        self._pause = min(self._pause * 2, 0.25)
        return None if time.monotonic() + self._pause >= self._give_up_at else self._pause

    def pause_after(self, error: Exception) -> float:
        """Return the seconds to wait before the call is repeated. Raises if that can't help, or the time is over."""
        if not isinstance(error, TransientError):
            raise error from None
        if self._reason is None or self.left > 0:  # the end of our own time is no new reason
            self._reason = str(error)
        pause = self.next_pause()
        if pause is None:
            raise self.lost(self._reason) from None
        return pause


def _socket_of(connection: AbstractConnection) -> socket.socket:
    # redis-py can limit a wait itself, but only of reading.
    return cast(socket.socket, connection._sock)
