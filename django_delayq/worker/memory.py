"""Measure the memory of a process, and check it against `--max-memory`.

A process whose handlers, or libraries, leak is ended now and then.
"""

import resource
import sys
from collections.abc import Callable
from pathlib import Path

from django_delayq.core.errors import DelayqError
from django_delayq.support.logging import logger
from django_delayq.support.units import size_text

_STATM = Path("/proc/self/statm")
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


class MemoryRefused(DelayqError):
    """The limit of memory can't be used."""


def resident() -> int:
    """Return the bytes of memory that this process takes now; its peak, where the system doesn't tell (not Linux)."""
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


def full_of(limit: int | None) -> Callable[[], bool]:
    """Return a function that tells whether this process is over its limit, and logs it."""

    def is_full() -> bool:
        if limit is None or (taken := resident()) <= limit:
            return False
        logger.info(
            "Stopping: this worker takes %s, and --max-memory is %s. It finishes what runs.",
            size_text(taken), size_text(limit),
        )  # fmt: skip
        return True

    return is_full
