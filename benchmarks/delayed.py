"""The handlers that the benchmarks send to."""

import os
import time
from functools import cache
from typing import Any

from django_delayq import Message, delay_execute


@delay_execute(key="bench.noop")
def noop(message: Message[Any]) -> None:
    """Do nothing, so that only the cost of getting here is left."""


@delay_execute(key="bench.burn")
def burn(message: Message[Any]) -> None:
    """Keep the processor busy for 1 ms, by the time that this thread itself runs."""
    until_ns = time.thread_time_ns() + 1_000_000
    while time.thread_time_ns() < until_ns:
        pass


@delay_execute(key="bench.record")
def record(message: Message[Any]) -> None:
    """Write down when the handler ran, by the clock of this machine, which also runs the Redis server."""
    now_ns = time.time_ns()
    os.write(_records(), f"{message.id} {message.attempt} {message.due_ms} {now_ns}\n".encode())


@delay_execute(key="bench.hold")
def hold(message: Message[None]) -> None:
    """Write down when the handler ran, then keep its thread busy."""
    record(message)
    time.sleep(float(os.environ["DELAYQ_BENCH_HOLD_S"]))


@cache
def _records() -> int:
    return os.open(os.environ["DELAYQ_BENCH_RECORDS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
