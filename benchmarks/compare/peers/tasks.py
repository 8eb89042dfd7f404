"""Send tasks of Django's tasks, for the contenders that are backends of these."""

from collections.abc import Iterable

from django.db import transaction

from benchmarks.compare.peers import site
from benchmarks.compare.peers.app.tasks import run


def send(name: str, number: int, due_ms: float | None) -> None:
    run.using(run_after=site.time_of(due_ms)).enqueue(name, number, due_ms)


def send_many(name: str, numbers: Iterable[int], due_ms: float | None) -> None:
    """Send in one transaction, because Django's tasks have nothing for many."""
    with transaction.atomic():
        for number in numbers:
            send(name, number, due_ms)
