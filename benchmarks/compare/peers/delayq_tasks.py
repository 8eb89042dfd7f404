"""django-delayq as a backend of Django's tasks, at its defaults: a store on PostgreSQL, timed by Redis."""

from benchmarks.compare.peers import site
from benchmarks.compare.peers.tasks import send, send_many

__all__ = ["prepare", "send", "send_many", "worker"]

prepare = site.prepare


def worker() -> list[str]:
    return site.command("run_delayq")
