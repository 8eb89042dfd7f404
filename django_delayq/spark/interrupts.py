"""Ctrl-C while a job runs, without the tracebacks that Java and Py4J would tell of it."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


@contextmanager
def held_back() -> Iterator[None]:
    """A Ctrl-C within the block is raised at its end, a second one at once.

    For Java's start, which lasts seconds: if it is left alone amid that it tells of it in a traceback, and may live on.
    Nothing is held back outside the main thread, since no other is told of signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # else it is Spark's, which cancels what runs
            signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


@contextmanager
def without_tracebacks() -> Iterator[None]:
    """Within the block Py4J, which logs to the root logger, logs no traceback: of a Ctrl-C it has several.

    What else goes wrong there is raised.
    """
    root = logging.getLogger()
    root.addFilter(_is_not_of_py4j)
    try:
        yield
    finally:
        root.removeFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"
