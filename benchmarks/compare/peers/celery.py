"""Celery on Redis, with late acknowledgements."""

import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime

from celery import Celery

from benchmarks.compare.work import HANDLERS

app = Celery("compare", broker=f"redis+socket://{os.environ['COMPARE_REDIS']}")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=128,  # large, because the tasks are short
    broker_connection_retry_on_startup=True,
    # It has to be longer than any delay, and nothing that a dead worker held is run before it has passed.
    broker_transport_options={"visibility_timeout": float(os.environ["COMPARE_LONGEST_DELAY_S"]) + 30},
)


@app.task(name="run")
def run(name: str, number: int, due_ms: float | None) -> None:
    HANDLERS[name](number, due_ms)


def prepare() -> None:
    """Nothing is needed."""


def send(name: str, number: int, due_ms: float | None) -> None:
    run.apply_async((name, number, due_ms), eta=_eta(due_ms))


def send_many(name: str, numbers: Iterable[int], due_ms: float | None) -> None:
    with app.producer_pool.acquire() as producer:
        for number in numbers:
            run.apply_async((name, number, due_ms), eta=_eta(due_ms), producer=producer)


def worker() -> list[str]:
    options = ["--pool=threads", "--concurrency=8", "--loglevel=WARNING", "--without-mingle", "--without-gossip"]
    return [sys.executable, "-m", "celery", "-A", "benchmarks.compare.peers.celery", "worker", *options]


def _eta(due_ms: float | None) -> datetime | None:
    return None if due_ms is None else datetime.fromtimestamp(due_ms / 1000, UTC)
