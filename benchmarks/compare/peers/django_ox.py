"""django-ox on PostgreSQL."""

from collections.abc import Iterable

from django_ox.bulk import enqueue_many

from benchmarks.compare.peers import site
from benchmarks.compare.peers.app.tasks import run
from benchmarks.compare.peers.tasks import send

__all__ = ["prepare", "send", "send_many", "worker"]

prepare = site.prepare


def send_many(name: str, numbers: Iterable[int], due_ms: float | None) -> None:
    task = run.using(run_after=site.time_of(due_ms))
    enqueue_many(task, [((name, number, due_ms), {}) for number in numbers])


def worker() -> list[str]:
    return site.command("ox_worker", "--concurrency", "4", "--interval", "0.1")
