"""Handle Ctrl-C while a job runs, without the tracebacks that Java and Py4J would write."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


@contextmanager
def held_back() -> Iterator[None]:
    """Hold back a Ctrl-C until the end of the block. A second Ctrl-C is raised at once.

    This is for Java's start, which takes seconds. If it is abandoned half-way, it writes a traceback, and Java may live
    on. Nothing is held back outside the main thread, because only that one receives signals.
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
        if signal.getsignal(signal.SIGINT) is note:  # otherwise it is Spark's, which cancels what runs
            signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


@contextmanager
def without_tracebacks() -> Iterator[None]:
    """Suppress the log records of Py4J in the block: for a Ctrl-C it logs several tracebacks to the root logger.

    Py4J also raises its other errors, so nothing is lost.
    """
    root = logging.getLogger()
    root.addFilter(_is_not_of_py4j)
    try:
        yield
    finally:
        root.removeFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"
