"""Sizes of tests. DELAYQ_SCALE=10 makes the suite ten times as thorough, and about as slow."""

import os


def scaled(size: int) -> int:
    """`size` times DELAYQ_SCALE (1 when absent); never less than 1."""
    return max(1, round(size * float(os.environ.get("DELAYQ_SCALE", "1"))))
