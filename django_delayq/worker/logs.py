"""Log a worker's own troubles: errors that its threads outlive, and outages, each logged once."""

import logging
import random
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from django_delayq.core.errors import DelayqError, StoreUnavailable
from django_delayq.support.logging import logger
from django_delayq.support.sanitize import clean
from django_delayq.worker import failure

LEVELS = {0: logging.ERROR, 1: logging.INFO}
"""The logging level for each `--verbosity`; higher ones log from DEBUG on."""


def level_of(verbosity: int) -> int:
    """Return the logging level for a `--verbosity`."""
    return LEVELS.get(verbosity, logging.DEBUG)


def start(level: int) -> None:
    """Log from `level` on, to standard error unless the site sends the lines elsewhere."""
    logger = logging.getLogger("django_delayq")
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)


class OutageLog:
    """The outages that the threads of a worker meet, each logged once and not by every thread.

    `work` names what a thread was doing, such as "claiming". An outage is over when nothing fails any more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.failing: set[str] = set()
        """The work that fails now."""
        self._said: set[str] = set()
        self._ends: set[str] = set()

    def begin(self, work: str, error: Exception) -> None:
        """Note that a call failed, and log each new error once."""
        text = clean(str(error)) if isinstance(error, DelayqError) else failure.first_line(error)
        with self._lock:
            self.failing.add(work)
            self._ends.add(_end_of(error))
            if text in self._said:
                return
            self._said.add(text)
        logger.error("%s Trying again until it works.", text)

    def end(self, work: str) -> None:
        """Note that a call worked. If nothing fails any more, log the end of the outage.

        This costs nothing while nothing fails.
        """
        if work not in self.failing:
            return
        with self._lock:
            self.failing.discard(work)
            if self.failing:
                return
            self._said.clear()
            ends, self._ends = sorted(self._ends), set()
        logger.info(" ".join(ends))


def _end_of(error: Exception) -> str:
    """Return the log line for the end of an outage by this error."""
    match error:
        case StoreUnavailable():
            return "The database is back."
        case DelayqError():
            return "The broker is back."
        case _:
            return "What failed works again."


def backoff_delays() -> Iterator[float]:
    """Yield the seconds to wait after each failure in a row: 0.1, then twice as long each time, up to 5.

    Each wait is up to 30 % shorter at random, so that workers spread out.
    """
    seconds = 0.1
    while True:
        yield seconds * random.uniform(0.7, 1.0)
        seconds = min(seconds * 2, 5.0)


Result = TypeVar("Result")


def guarded(work: Callable[[], Result]) -> Result | None:
    """Return the result of `work`. If it raises, log that and return None."""
    try:
        return work()
    except Exception:
        logger.exception("Something went wrong in a thread of the worker; it goes on.")
        return None
