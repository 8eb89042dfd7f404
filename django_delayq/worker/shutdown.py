"""Run a worker in a process: signals, and how the process ends."""

import logging
import os
import select
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from django_delayq.brokers.base import SettleAction
from django_delayq.support.logging import logger
from django_delayq.worker.signal_handlers import taken_signals
from django_delayq.worker.worker import LAST_WORDS_S

LOOK_S = 1.0
INTERRUPTED = (
    "Not every handler ended in time. What still ran was interrupted: "
    "it runs again, but what is at_most_once goes to error."
)


class Runnable(Protocol):
    """A worker, or the supervisor of several."""

    @property
    def counts(self) -> "Counter[SettleAction]":
        """Return how many leases ended by each action."""

    @property
    def served(self) -> set[tuple[str, str]]:
        """Return the (queue, key) pairs that it claims from."""

    def run(self) -> bool:
        """Work until there is a reason to stop, then wind down. Returns False when a handler would not end."""

    def stop(self) -> None:
        """Claim no more, finish what runs within the shutdown time-out, give back the rest."""

    def hurry(self) -> None:
        """Interrupt what runs instead of waiting for it."""


Run = Callable[[Runnable], bool]


def run_until_signalled(make_worker: Callable[[], Runnable], run: Run = lambda worker: worker.run()) -> None:
    """Make and run a worker until it is done or SIGTERM or SIGINT stops it. Call it in the main thread.

    Returns when the worker ended well; raises what `make_worker` raised. A second signal ends the process at once. So
    does a handler that doesn't end in time, with exit code 0: its message is safe.
    """
    # The main thread only reads this pipe: a signal handler must take no lock, and the thread that it interrupts
    # might hold any.
    reader, writer = os.pipe()
    running = _Running(make_worker, run, lambda: os.write(writer, b"\0"))
    with taken_signals(lambda signum: os.write(writer, bytes([signum]))):
        running.thread.start()
        first = _next_byte(reader)
        if first and running.stop():
            logger.info("Stopping on %s: finishing what runs; a second signal stops at once.", _name(first))
            second = _next_byte(reader)
            if second:
                logger.warning("Stopping at once on a second %s.", _name(second))
                running.hurry(LAST_WORDS_S * 2)
                exit_at_once(128 + second)
        elif first:
            return  # the broker was still waited for: nothing is held
        running.thread.join()
    os.close(reader)
    os.close(writer)
    if running.error is not None:
        raise running.error
    if not running.ended_well:
        logger.warning(INTERRUPTED)
        exit_at_once(0)


def _next_byte(reader: int) -> int:
    # Python handles a signal in the main thread, and a read is not interrupted by one that the system gave to another
    # thread, or that came a moment before the read: so the main thread looks up now and then.
    while not select.select([reader], [], [], LOOK_S)[0]:
        pass
    return os.read(reader, 1)[0]


class _Running:
    """The thread of a worker."""

    def __init__(self, make_worker: Callable[[], Runnable], run: Run, on_end: Callable[[], object]) -> None:
        self.thread = threading.Thread(target=self._run, name="delayq-loop", daemon=True)
        self.error: BaseException | None = None
        self.ended_well = False
        self._make_worker = make_worker
        self._run_worker = run
        self._on_end = on_end
        self._lock = threading.Lock()
        self._stopped = False
        self._worker: Runnable | None = None

    def stop(self) -> bool:
        """Stop the worker. Returns False when there is none yet, and never will be."""
        with self._lock:
            self._stopped = True
        if self._worker is None:
            return False
        self._worker.stop()
        return True

    def hurry(self, timeout: float) -> None:
        """Stop the worker without waiting for handlers."""
        if self._worker is not None:
            self._worker.hurry()
        self.thread.join(timeout)

    def _run(self) -> None:
        try:
            worker = self._make_worker()
            with self._lock:
                if self._stopped:
                    return
                self._worker = worker
            self.ended_well = self._run_worker(worker)
        except BaseException as error:  # noqa: BLE001 - raised again where it is told to the operator
            self.error = error
        finally:
            self._on_end()


def exit_at_once(code: int) -> None:
    """End the process without waiting for threads: one of them may never end."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _name(signum: int) -> str:
    return signal.Signals(signum).name
