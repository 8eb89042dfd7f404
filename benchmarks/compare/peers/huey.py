"""Huey on Redis."""

import os
import shutil
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from huey import RedisHuey

from benchmarks.compare.work import HANDLERS

huey = RedisHuey("compare", url=f"unix://{os.environ['COMPARE_REDIS']}", utc=False, results=False)


@huey.task()
def run(name: str, number: int, due_ms: float | None) -> None:
    HANDLERS[name](number, due_ms)


def prepare() -> None:
    """Nothing is needed."""


def send(name: str, number: int, due_ms: float | None) -> None:
    if due_ms is None:
        run(name, number, due_ms)
    else:
        run.schedule((name, number, due_ms), eta=datetime.fromtimestamp(due_ms / 1000))


def send_many(name: str, numbers: Iterable[int], due_ms: float | None) -> None:
    for number in numbers:  # it has no other way
        send(name, number, due_ms)


def worker() -> list[str]:
    consumer = shutil.which("huey_consumer", path=str(Path(sys.executable).parent))
    options = ["--workers", "4", "--scheduler-interval", "1", "--quiet"]
    return [str(consumer), "benchmarks.compare.peers.huey.huey", *options]
