"""Scale the sizes: DELAYQ_SCALE=0.1 makes the benchmarks ten times as small."""

import os


def scaled(size: int, least: int = 1) -> int:
    """Return `size` times DELAYQ_SCALE (1 if it is not set), but never less than `least`."""
    return max(least, round(size * float(os.environ.get("DELAYQ_SCALE", "1"))))
