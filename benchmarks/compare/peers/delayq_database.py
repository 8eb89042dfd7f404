"""django-delayq on PostgreSQL alone."""

from benchmarks.compare.peers.delayq import prepare, send, send_many, worker

__all__ = ["prepare", "send", "send_many", "worker"]
