"""RETENTION: a worker prunes by itself what finished long ago, one batch at a time, even under load."""

from time import monotonic

from django_delayq.brokers.base import BATCH
from django_delayq.store.operations import prune_finished
from django_delayq.store.queue import DatabaseQueue

EVERY_S = 60.0


class Pruning:
    """Prunes once a minute, and goes on as long as batches are full."""

    def __init__(self, queue: DatabaseQueue) -> None:
        self._queue = queue
        self._due_at = 0.0

    def prune_due(self) -> bool:
        """Prune a batch when that is due. Return whether there is more."""
        retention_ms = self._queue.settings.retention
        if retention_ms is None or monotonic() < self._due_at:
            return False
        database = self._queue.database
        is_full = prune_finished(database, database.now_ms() - retention_ms) >= BATCH
        self._due_at = 0.0 if is_full else monotonic() + EVERY_S
        return is_full
