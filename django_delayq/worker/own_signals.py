"""SIGTERM and SIGINT as this process handles them: not as the processes that a handler forks should."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_before: dict[int, Any] = {}
"""What handled each signal that is taken."""


@contextmanager
def taken_signals(handle: Callable[[int], object]) -> Iterator[None]:
    """Have SIGTERM and SIGINT handled by `handle`, in this process alone. Call it in the main thread."""
    owner = os.getpid()

    def handle_own(signum: int, frame: object) -> None:
        if os.getpid() == owner:
            handle(signum)
        else:  # it came between the fork and what is registered below
            _give_back()
            os.kill(os.getpid(), signum)

    _before.update({signum: signal.signal(signum, handle_own) for signum in (signal.SIGTERM, signal.SIGINT)})
    try:
        yield
    finally:
        _give_back()


def _give_back() -> None:
    while _before:
        signum, handler = _before.popitem()
        signal.signal(signum, handler)


os.register_at_fork(after_in_child=_give_back)
