"""dramatiq on Redis, which soon runs again what a dead worker had."""

import os
import sys
from collections.abc import Iterable

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.compare.work import HANDLERS, now_ms

# A worker is dead after this time in ms. One in ten calls of a live one looks for such, and not one in a thousand.
RECOVERY = {"heartbeat_timeout": 15_000, "maintenance_chance": 100_000}
# How many messages a worker fetches at once, and after how many ms at most it looks for more.
WORKER = {"dramatiq_queue_prefetch": "1000", "dramatiq_worker_timeout": "100"}
dramatiq.set_broker(RedisBroker(url=f"unix://{os.environ['COMPARE_REDIS']}", **RECOVERY))


@dramatiq.actor
def run(name: str, number: int, due_ms: float | None) -> None:
    HANDLERS[name](number, due_ms)


def prepare() -> None:
    """Nothing is needed."""


def send(name: str, number: int, due_ms: float | None) -> None:
    delay = None if due_ms is None else max(round(due_ms - now_ms()), 1)
    run.send_with_options(args=(name, number, due_ms), delay=delay)


def send_many(name: str, numbers: Iterable[int], due_ms: float | None) -> None:
    for number in numbers:  # it has no other way
        send(name, number, due_ms)


def worker() -> list[str]:
    os.environ.update(WORKER)
    return [sys.executable, "-m", "dramatiq", "--processes", "1", "--threads", "8", "benchmarks.compare.peers.dramatiq"]
