"""A queue as one writes it by hand: a table, the ORM, `SKIP LOCKED`, 100 rows a transaction, a look each 100 ms."""

import sys
import time
from collections.abc import Iterable

from django.db import transaction
from django.utils import timezone

from benchmarks.compare.peers import site
from benchmarks.compare.work import HANDLERS
from benchmarks.models import Job

AT_ONCE, LOOK_S = 100, 0.1

prepare = site.prepare


def send(name: str, number: int, due_ms: float | None) -> None:
    _job(name, number, due_ms).save()


def send_many(name: str, numbers: Iterable[int], due_ms: float | None) -> None:
    Job.objects.bulk_create((_job(name, number, due_ms) for number in numbers), batch_size=1_000)


def worker() -> list[str]:
    return [sys.executable, "-m", "benchmarks.compare.peers.by_hand"]


def run_worker() -> None:
    """Run what is due, for ever."""
    while True:
        if not _run_some():
            time.sleep(LOOK_S)


def _job(name: str, number: int, due_ms: float | None) -> Job:
    return Job(key=name, data=[number, due_ms], due_at=site.time_of(due_ms) or timezone.now())


def _run_some() -> bool:
    with transaction.atomic():
        due = Job.objects.filter(due_at__lte=timezone.now()).order_by("due_at")
        found = list(due.select_for_update(skip_locked=True)[:AT_ONCE])
        for job in found:
            HANDLERS[job.key](*job.data)
        Job.objects.filter(pk__in=[job.pk for job in found]).delete()
    return bool(found)


if __name__ == "__main__":
    run_worker()
