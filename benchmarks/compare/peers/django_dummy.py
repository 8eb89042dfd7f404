"""Django's backend that keeps tasks in memory, and runs none."""

from benchmarks.compare.peers import site
from benchmarks.compare.peers.tasks import send, send_many

__all__ = ["prepare", "send", "send_many"]

prepare = site.prepare
