"""The clocks that delays go by: whose monotonic clock it is, and what it says."""

import hashlib
import math
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path


def _machine() -> str:
    """A name for what `time.monotonic` reads here: processes of one machine, and its containers, have it in common."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/time")
    except OSError:  # no Linux: each process for itself
        boot = secrets.token_hex()
    return hashlib.sha256(boot.encode()).hexdigest()[:12]


MACHINE = _machine()


class Clock:
    """What time it is, in seconds. Tests give functions that they move."""

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self.wall = wall
        self.monotonic = monotonic
        self.name = MACHINE if monotonic is time.monotonic else ""
        """Whoever has a clock of the same name may compare its instants with ours; "" is nobody."""

    def now_ms(self) -> int:
        """Epoch milliseconds, rounded down."""
        return math.floor(self.wall() * 1000)

    def ms_until(self, instant: float) -> int:
        """Milliseconds until an instant of the monotonic clock, rounded up; negative when it is over."""
        return math.ceil((instant - self.monotonic()) * 1000)
