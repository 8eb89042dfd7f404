"""django-delayq on Redis alone, without a store."""

from benchmarks.compare.peers.delayq import prepare, send, send_many, worker

__all__ = ["prepare", "send", "send_many", "worker"]
