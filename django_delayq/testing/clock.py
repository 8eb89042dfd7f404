"""Read Python's clock, which the stores follow in tests, and move it with time-machine or freezegun.

Neither library is needed. If freezegun has moved or stopped the clock already, it is used; otherwise time-machine if it
is installed, or else freezegun.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Protocol

from django_delayq.support.timestamps import EPOCH

_blocks: list[ExitStack] = []
"""The open blocks of `put_back_at_end`, innermost last."""


def now_us() -> int:
    """Return Python's time in epoch microseconds: neither datetimes nor the libraries are more exact."""
    return (time.time_ns() + 500) // 1000


def now_ms() -> int:
    """Return Python's time in epoch milliseconds, rounded down."""
    return now_us() // 1000


class Mover(Protocol):
    """A library that moves Python's clock."""

    def is_active(self) -> bool:
        """Return whether the library has moved or stopped the clock."""

    def start(self, block: ExitStack) -> None:
        """Take over the clock until the end of the block, without moving or stopping it yet."""

    def leap(self, by_ms: int) -> Callable[[], None]:
        """Move ahead the clock that the library has taken over. A clock that stood still stands still again.

        Return a function that moves the clock back, or does nothing if the library's user has put it back meanwhile.
        """


class _TimeMachine:
    def __init__(self) -> None:
        from time_machine import travel, traveller_stack  # from version 3 on

        self._travel = travel
        self._travellers = traveller_stack

    def is_active(self) -> bool:
        return bool(self._travellers)

    def start(self, block: ExitStack) -> None:
        block.enter_context(self._travel(now_us() / 1e6))  # a datetime would set the local time zone too

    def leap(self, by_ms: int) -> Callable[[], None]:
        traveller, by = self._travellers[-1], timedelta(milliseconds=by_ms)
        traveller.shift(by)
        return lambda: traveller.shift(-by) if traveller in self._travellers else None


class _Freezegun:
    def __init__(self) -> None:
        from freezegun import api

        self._freeze_time = api.freeze_time
        self._clocks = api.freeze_factories

    def is_active(self) -> bool:
        return bool(self._clocks)

    def start(self, block: ExitStack) -> None:
        now = EPOCH + timedelta(microseconds=now_us())
        # asyncio must not see leaps, nor pytest, which measures how long a test takes
        own = self._freeze_time(now, tick=True, ignore=["_pytest.timing"], real_asyncio=True)
        block.enter_context(own)

    def leap(self, by_ms: int) -> Callable[[], None]:
        clock, by = self._clocks[-1], timedelta(milliseconds=by_ms)
        clock.move_to(clock() + by)  # its `tick` would forget for how long the clock has run
        return lambda: clock.move_to(clock() - by) if clock in self._clocks else None


def find_mover() -> Mover | None:
    """Return the library that moves Python's clock; None if there is none."""
    if "freezegun.api" in sys.modules and (freezegun := _Freezegun()).is_active():
        return freezegun
    for library in (_TimeMachine, _Freezegun):
        with suppress(ImportError):
            return library()
    return None


@contextmanager
def put_back_at_end() -> Iterator[None]:
    """Move Python's clock back at the end of the block, by as much as `leap` has moved it ahead in the block."""
    with ExitStack() as block:
        _blocks.append(block)
        try:
            yield
        finally:
            _blocks.remove(block)


def is_put_back() -> bool:
    """Return whether a block of `put_back_at_end` is open."""
    return bool(_blocks)


def leap(mover: Mover, by_ms: int) -> None:
    """Move Python's clock ahead, until the end of the innermost block of `put_back_at_end`.

    Without such a block the library must be active already, so that its user puts the clock back.
    """
    if not mover.is_active():
        mover.start(_blocks[-1])
    back = mover.leap(by_ms)
    if _blocks:
        _blocks[-1].callback(back)
