"""Procrastinate on PostgreSQL, with the periodic task that its documentation gives for stalled jobs."""

import json
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from typing import Any

from procrastinate import App, JobContext, PsycopgConnector

from benchmarks.compare.work import HANDLERS

SERVER = json.loads(os.environ["COMPARE_POSTGRES"])
CHUNK = 1_000
app = App(connector=PsycopgConnector(kwargs=SERVER))


@app.task(name="run", retry=True)
def run(name: str, number: int, due_ms: float | None) -> None:
    HANDLERS[name](number, due_ms)


@app.periodic(cron="* * * * *")
@app.task(name="retry_stalled_jobs", queueing_lock="retry_stalled_jobs", pass_context=True)
async def retry_stalled_jobs(context: JobContext, timestamp: int) -> None:
    for job in await app.job_manager.get_stalled_jobs():
        await app.job_manager.retry_job(job)


@cache
def _open() -> Any:
    """Open the connections of a sender, once. Return the task."""
    app.open()
    return run


def prepare() -> None:
    with app.open():
        app.schema_manager.apply_schema()


def send(name: str, number: int, due_ms: float | None) -> None:
    _at(due_ms).defer(name=name, number=number, due_ms=due_ms)


def send_many(name: str, numbers: Iterable[int], due_ms: float | None) -> None:
    jobs = [{"name": name, "number": number, "due_ms": due_ms} for number in numbers]
    for start in range(0, len(jobs), CHUNK):
        _at(due_ms).batch_defer(*jobs[start : start + CHUNK])


def worker() -> list[str]:
    command = [sys.executable, "-m", "procrastinate", "--app=benchmarks.compare.peers.procrastinate.app", "worker"]
    return [*command, "--concurrency=8", "--delete-jobs=successful", "--fetch-job-polling-interval=0.5"]


def _at(due_ms: float | None) -> Any:
    at = None if due_ms is None else datetime.fromtimestamp(due_ms / 1000, UTC)
    return _open().configure(schedule_at=at)
