"""How large the demo is: what `make demo SHARDS=8 WORKERS=3` asks for."""

import os
from pathlib import Path

LAST_SHARDS = "shards"
"""The file that says how many shards the last demo had: whoever looks around afterwards needs as many."""


def workers() -> int:
    """How many workers there are."""
    return int(os.environ.get("DELAYQ_DEMO_WORKERS", "2"))


def shards(var: Path) -> int:
    """Into how many parts Redis is divided; `var` is where the demo keeps its files."""
    last = var / LAST_SHARDS
    return int(os.environ.get("DELAYQ_DEMO_SHARDS") or (last.read_text() if last.exists() else "1"))
