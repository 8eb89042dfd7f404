"""django-delayq at its defaults: a store on PostgreSQL, timed by Redis."""

from collections.abc import Iterable

from benchmarks.compare.peers import site
from benchmarks.compare.peers.app.delayed import run
from django_delayq import send_delay_messages

prepare = site.prepare


def send(name: str, number: int, due_ms: float | None) -> None:
    run.send([name, number, due_ms], at=site.time_of(due_ms))


def send_many(name: str, numbers: Iterable[int], due_ms: float | None) -> None:
    send_delay_messages(run.prepare([name, number, due_ms], at=site.time_of(due_ms)) for number in numbers)


def worker() -> list[str]:
    return site.command("run_delayq")
