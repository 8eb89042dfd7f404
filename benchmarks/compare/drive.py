"""Run an adapter: `python -m benchmarks.compare.drive PEER COMMAND [NUMBER ...]`, with the Python of the contender.

It needs nothing but Python and the adapter. What is timed prints its seconds as JSON. `peers/bullmq.mjs` has the same
commands.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.compare.work import now_ms

LONGEST_DELAY_S = 2.0


def prepare(peer: Any) -> None:
    """Make the tables."""
    peer.prepare()


def one(peer: Any, count: float) -> None:
    """Send messages one at a time, due now, after a few that are not timed."""
    for number in range(20):
        peer.send("noop", number, None)
    started = time.perf_counter()
    for number in range(int(count)):
        peer.send("noop", number, None)
    _tell(time.perf_counter() - started)


def many(peer: Any, count: float, after_s: float) -> None:
    """Send messages in bulk, due now or after so many seconds."""
    due_ms = now_ms() + after_s * 1000 if after_s else None
    started = time.perf_counter()
    peer.send_many("noop", range(int(count)), due_ms)
    _tell(time.perf_counter() - started)


def pace(peer: Any, seconds: float, per_s: float) -> None:
    """Send delayed messages at a steady pace, each due within `LONGEST_DELAY_S`."""
    delays = random.Random(1)
    started = time.monotonic()
    for number in range(int(seconds * per_s)):
        time.sleep(max(started + number / per_s - time.monotonic(), 0))
        peer.send("record", number, now_ms() + delays.uniform(0, LONGEST_DELAY_S) * 1000)


def holds(peer: Any, count: float) -> None:
    """Send messages that take a while: half due now, half within `LONGEST_DELAY_S`."""
    delays = random.Random(1)
    for number in range(int(count)):
        peer.send("hold", number, now_ms() + delays.uniform(0, LONGEST_DELAY_S) * 1000 if number % 2 else None)


def work(peer: Any) -> None:
    """Become a worker."""
    command = peer.worker()
    os.execvp(command[0], command)  # noqa: S606


COMMANDS: dict[str, Callable[..., None]] = {
    command.__name__: command for command in (prepare, one, many, pace, holds, work)
}


def _tell(seconds: float) -> None:
    sys.stdout.write(json.dumps({"seconds": seconds}) + "\n")


if __name__ == "__main__":
    COMMANDS[sys.argv[2]](import_module(f"benchmarks.compare.peers.{sys.argv[1]}"), *map(float, sys.argv[3:]))
