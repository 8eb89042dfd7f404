"""SIGTERM and SIGINT as this process handles them: not as the processes that a handler forks should."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_TAKEN = (signal.SIGTERM, signal.SIGINT)

_before: dict[int, Any] = {}
"""What handled each signal that is taken."""
_forking = threading.local()


@contextmanager
def taken_signals(handle: Callable[[int], object]) -> Iterator[None]:
    """Have SIGTERM and SIGINT handled by `handle`, in this process alone. Call it in the main thread."""

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
    # Python drops what a new process is sent before its hooks have run; the system keeps it.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _start_anew() -> None:
    _give_back()
    _let_through()


os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_start_anew)
