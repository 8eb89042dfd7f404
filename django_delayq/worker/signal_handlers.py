"""Handle SIGTERM and SIGINT in this process, but not in the processes that a handler forks."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_TAKEN = (signal.SIGTERM, signal.SIGINT)

_before: dict[int, Any] = {}
"""The earlier handler of each signal that is taken."""
_forking = threading.local()


@contextmanager
def taken_signals(handle: Callable[[int], object]) -> Iterator[None]:
    """Handle SIGTERM and SIGINT by `handle` for the block, in this process alone. Call it in the main thread."""

    def handle_own(signum: int, frame: object) -> None:
        handle(signum)

    _before.update({signum: signal.signal(signum, handle_own) for signum in _TAKEN})
    try:
        yield
    finally:
        _give_back()


def _give_back() -> None:
    while _before:
        signum, handler = _before.popitem()
        signal.signal(signum, handler)


def _hold_back() -> None:
    # Python drops signals that a new process gets before its fork hooks have run; a blocked one the system keeps.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _start_anew() -> None:
    _give_back()
    _let_through()


os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_start_anew)
