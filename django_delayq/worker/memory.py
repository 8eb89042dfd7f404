"""Measure the memory of a process, and check it against `--max-memory`.

A process whose handlers, or libraries, leak is ended now and then.
"""

import resource
import sys
from pathlib import Path

from django_delayq.core.errors import DelayqError
from django_delayq.support.logging import logger
from django_delayq.support.units import size_text

_STATM = Path("/proc/self/statm")
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


class MemoryRefused(DelayqError):
    """The limit of memory can't be used."""


def resident() -> int:
    """Return how many bytes of memory this process takes now. Elsewhere than on Linux, return the most it ever took."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT


def check_limit(limit: int) -> None:
    """Raise `MemoryRefused` for a limit that this process is over already: each message would be its last."""
    taken = resident()
    if taken > limit:
        raise MemoryRefused(
            f"--max-memory {size_text(limit)} is less than the {size_text(taken)} that this worker takes before its "
            "first message; give it more, such as 512MiB."
        )


class MemoryLimit:
    """The most memory that this process may take; None: as much as it wants."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self.is_set = limit is not None
        self.is_exceeded = False
        """Whether it was found to take more."""

    def check(self) -> bool:
        """Return whether this process takes more than it may, and log that."""
        if self._limit is None or (taken := resident()) <= self._limit:
            return False
        self.is_exceeded = True
        logger.info(
            "Stopping: this worker takes %s, and --max-memory is %s. It finishes what runs.",
            size_text(taken), size_text(self._limit),
        )  # fmt: skip
        return True
