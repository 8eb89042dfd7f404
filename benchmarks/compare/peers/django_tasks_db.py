"""django-tasks-db on PostgreSQL."""

from benchmarks.compare.peers import site
from benchmarks.compare.peers.tasks import send, send_many

__all__ = ["prepare", "send", "send_many", "worker"]

prepare = site.prepare


def worker() -> list[str]:
    return site.command("db_worker", "--interval", "0.1", "--no-startup-delay")
