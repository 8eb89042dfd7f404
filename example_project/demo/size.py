"""The size of the demo, as in `make demo SHARDS=8 WORKERS=3`."""

import os
from pathlib import Path

LAST_SHARDS = "shards"
"""The file that says how many shards the last demo had, for those who look around afterwards."""


def workers() -> int:
    """Return how many workers there are."""
    return int(os.environ.get("DELAYQ_DEMO_WORKERS", "2"))


def shards(var: Path) -> int:
    """Return into how many parts Redis is divided. The demo keeps its files in `var`."""
    last = var / LAST_SHARDS
    return int(os.environ.get("DELAYQ_DEMO_SHARDS") or (last.read_text() if last.exists() else "1"))
