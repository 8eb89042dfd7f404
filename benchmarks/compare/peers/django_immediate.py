"""Django's backend that runs a task where it is enqueued."""

from benchmarks.compare.peers import site
from benchmarks.compare.peers.tasks import send, send_many

__all__ = ["prepare", "send", "send_many"]

prepare = site.prepare
