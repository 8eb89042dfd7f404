"""Do the work of the messages, for each contender alike, by Python alone. A handler writes a line to COMPARE_RUNS."""

import os
import time
from collections.abc import Callable
from functools import cache

HOLD_S = 0.1


def noop(number: int, due_ms: float | None) -> None:
    """Count."""
    _write(".")


def record(number: int, due_ms: float | None) -> None:
    """Write when it was due, and when it started."""
    _write(f"{due_ms} {now_ms()}")


def hold(number: int, due_ms: float | None) -> None:
    """Take a while, and write when it started and ended."""
    _write(f"start {number} {now_ms()}")
    time.sleep(HOLD_S)
    _write(f"end {number} {now_ms()}")


HANDLERS: dict[str, Callable[[int, float | None], None]] = {"noop": noop, "record": record, "hold": hold}


def now_ms() -> float:
    """Return the time by the machine's clock, which is also the servers'."""
    return time.time_ns() / 1e6


def _write(line: str) -> None:
    os.write(_runs(), f"{line}\n".encode())


@cache
def _runs() -> int:
    return os.open(os.environ["COMPARE_RUNS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
