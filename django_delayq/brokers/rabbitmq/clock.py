"""The clocks that delays are measured by, and a name that tells whose monotonic clock it is."""

import hashlib
import math
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path


def _machine() -> str:
    """Return a name for the clock of `time.monotonic`, which processes of one machine and its containers share."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/time")
    except OSError:  # no Linux: each process gets a name of its own
        boot = secrets.token_hex()
    return hashlib.sha256(boot.encode()).hexdigest()[:12]


MACHINE = _machine()


class Clock:
    """The wall clock and the monotonic clock, in seconds. Tests pass functions that they control."""

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self.wall = wall
        self.monotonic = monotonic
        self.name = MACHINE if monotonic is time.monotonic else ""
        """A process with a clock of the same name may compare its instants with ours; "" is shared by none."""

    def now_ms(self) -> int:
        """Return epoch milliseconds, rounded down."""
        return math.floor(self.wall() * 1000)

    def ms_until(self, instant: float) -> int:
        """Return the ms until an instant of the monotonic clock, rounded up; negative when it is over."""
        return math.ceil((instant - self.monotonic()) * 1000)
