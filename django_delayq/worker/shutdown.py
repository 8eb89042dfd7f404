"""A worker in a process: signals, and how the process ends."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django_delayq.worker.worker import LAST_WORDS_S, Worker

STUCK = 75
"""The exit code when a handler would not end (EX_TEMPFAIL)."""

_logger = logging.getLogger("django_delayq")


def run_until_signalled(worker: Worker) -> None:
    """Run a worker until it is done or SIGTERM or SIGINT stops it. Call it in the main thread.

    Returns when the worker ended well. A second signal ends the process at once, as does a handler that doesn't end.
    """
    # The main thread only reads this pipe: a signal handler must take no lock, and the thread that it interrupts
    # might hold any.
    reader, writer = os.pipe()
    ended_well = False

    def run() -> None:
        nonlocal ended_well
        try:
            ended_well = worker.run()
        finally:
            os.write(writer, b"\0")

    with _signals_to(writer):
        thread = threading.Thread(target=run, name="delayq-loop")
        thread.start()
        first = os.read(reader, 1)[0]
        if first:
            _logger.info("Stopping on %s: finishing what runs; a second signal stops at once.", _name(first))
            worker.stop()
            second = os.read(reader, 1)[0]
            if second:
                _logger.warning("Stopping at once on a second %s.", _name(second))
                worker.hurry()
                thread.join(LAST_WORDS_S * 2)
                _exit_at_once(128 + second)
        thread.join()
    os.close(reader)
    os.close(writer)
    if not ended_well:
        _logger.error("A handler did not end in time: its message was interrupted and runs again.")
        _exit_at_once(STUCK)


@contextmanager
def _signals_to(pipe: int) -> Iterator[None]:
    def write(signum: int, frame: object) -> None:
        os.write(pipe, bytes([signum]))

    before = {signum: signal.signal(signum, write) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _exit_at_once(code: int) -> None:
    """End without waiting for threads: one of them would never end."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _name(signum: int) -> str:
    return signal.Signals(signum).name
