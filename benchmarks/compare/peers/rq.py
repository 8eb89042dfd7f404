"""RQ, with its scheduler in the worker, and retries, by which a job is run again that a dead worker had."""

import os
import shutil
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from redis import Redis
from rq import Queue, Retry

from benchmarks.compare.work import HANDLERS

URL = f"unix://{os.environ['COMPARE_REDIS']}"
queue = Queue(connection=Redis.from_url(URL), default_timeout=10)
OPTIONS = {"result_ttl": 0, "retry": Retry(max=3)}
CHUNK = 1_000


def run(name: str, number: int, due_ms: float | None) -> None:
    HANDLERS[name](number, due_ms)


def prepare() -> None:
    """Nothing is needed."""


def send(name: str, number: int, due_ms: float | None) -> None:
    if due_ms is None:
        queue.enqueue(run, args=(name, number, due_ms), **OPTIONS)
    else:
        queue.enqueue_at(datetime.fromtimestamp(due_ms / 1000, UTC), run, args=(name, number, due_ms), **OPTIONS)


def send_many(name: str, numbers: Iterable[int], due_ms: float | None) -> None:
    if due_ms is not None:
        for number in numbers:
            send(name, number, due_ms)
        return
    jobs = [Queue.prepare_data(run, args=(name, number, due_ms), **OPTIONS) for number in numbers]
    for start in range(0, len(jobs), CHUNK):
        queue.enqueue_many(jobs[start : start + CHUNK])


def worker() -> list[str]:
    rq = shutil.which("rq", path=str(Path(sys.executable).parent))
    options = ["--with-scheduler", "--worker-class", "rq.SimpleWorker", "--maintenance-interval", "10"]
    return [str(rq), "worker", "--url", URL, *options, "--worker-ttl", "30", "--quiet"]
