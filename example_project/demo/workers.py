"""The worker processes of the demo."""

import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from django.db.models import QuerySet
from django.utils import timezone

from django_delayq.monitor import status
from example_project.demo.waiting import wait_for
from example_project.shop.delayed import text_store
from example_project.shop.models import Run

Worker = subprocess.Popen[bytes]


def start_worker(log: Path) -> Worker:
    """Start `manage.py run_delayq`, which writes its output to `log`."""
    command = [sys.executable, "manage.py", "run_delayq"]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)  # noqa: S603


def await_workers(count: int) -> None:
    """Wait until `count` workers have announced themselves."""
    wait_for(f"{count} live workers", lambda: len(status().workers) >= count)


def kill_amid_handlers(workers: Sequence[Worker]) -> Worker:
    """Kill (SIGKILL) and return a worker that is in the middle of handlers, which all send texts.

    If it died between the end of a handler and its settlement, the message would rightly run again, because delivery is
    at least once. The demo wants to show that no message runs to its end twice.
    """
    worker = wait_for("a worker amid handlers", lambda: next(filter(is_amid_handlers, workers), None))
    worker.kill()
    worker.wait()
    return worker


def is_amid_handlers(worker: Worker) -> bool:
    """Return whether a worker sends texts that neither started nor will end just now, and has settled all else."""
    runs = Run.objects.filter(worker_pid=worker.pid)
    running = runs.filter(outcome=Run.Outcome.RUNNING)
    others = running.exclude(key=text_store.key) | _started_outside(running, 0.2, 0.7)
    return running.exists() and not (others.exists() or _ended_within(runs, 0.3).exists())


def _started_outside(runs: QuerySet[Run], least: float, most: float) -> QuerySet[Run]:
    return runs.exclude(started_at__range=(_ago(most), _ago(least)))


def _ended_within(runs: QuerySet[Run], seconds: float) -> QuerySet[Run]:
    return runs.filter(ended_at__gt=_ago(seconds))


def _ago(seconds: float) -> datetime:
    return timezone.now() - timedelta(seconds=seconds)
