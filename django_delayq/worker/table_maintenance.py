"""The thread of a worker that looks after the tables: the window, the sweep, and what is pruned."""

import threading
from collections.abc import Callable
from time import monotonic

from django.db import connections

from django_delayq.brokers.base import BATCH
from django_delayq.core.errors import PartlyUnavailable
from django_delayq.store.alarms import schedule_window
from django_delayq.store.operations import prune_finished
from django_delayq.store.polling import Sweep
from django_delayq.store.queue import DatabaseQueue
from django_delayq.worker.logs import OutageLog

EVERY_S = 1.0
PRUNE_EVERY_S = 60.0


class TableMaintenance:
    """The thread that schedules the window, sweeps and prunes, on a connection of its own.

    So neither claims nor settlements wait for it. It also asks a timer that is away whether it is back, so that nothing
    else has to wait for the answer.
    """

    def __init__(self, queue: DatabaseQueue, lease_ms: int, outage_log: OutageLog) -> None:
        self._queue = queue
        self._lease_ms = lease_ms
        self._outage_log = outage_log
        self._pruning = Pruning(queue)
        self._sweep = Sweep(queue.database)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._maintain_forever, name="delayq-tables", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float) -> None:
        """End the thread, and its connection."""
        self._closed.set()
        self._thread.join(timeout)

    def _maintain_forever(self) -> None:
        try:
            while not self._closed.is_set():
                started_at = monotonic()
                if self._queue.window is not None:  # else its timer reads the rows by itself
                    self._try("sweeping", self._sweep_once)
                    self._try("scheduling the window", self._keep_window)
                if not self._try("pruning", self._pruning.prune_due):
                    self._closed.wait(EVERY_S - (monotonic() - started_at))
        finally:
            connections.close_all()

    def _try(self, what: str, page: Callable[[], bool]) -> bool:
        """Do one page of the work that `what` names. Return whether there is more."""
        try:
            with self._queue.database.available():
                is_full = page()
        except Exception as error:  # noqa: BLE001 - whatever it is, only another try can help
            self._outage_log.begin(what, error)
            self._queue.degraded.begin_if_due()
            return False
        if self._outage_log.failing:
            self._outage_log.end(what)
        return is_full

    def _sweep_once(self) -> bool:
        found = self._sweep.find(self._queue.underfilled.requests())
        if found:
            self._queue.backlog |= found
            self._queue.wake()
        return False

    def _keep_window(self) -> bool:
        """Schedule the window.

        After an outage of the timer, do that before the degraded mode ends and workers rely on alarms.
        """
        queue, window = self._queue, self._queue.window
        if window is None:
            return False
        try:
            if queue.degraded.away:
                queue.ask_timer(lease_ms=self._lease_ms)
        except PartlyUnavailable:
            schedule_window(queue.database, window)  # the shards that answer go on, beside the tables
            raise
        schedule_window(queue.database, window)
        if queue.degraded.on:
            queue.degraded.end()
        return False


class Pruning:
    """The pruning of finished rows: once a minute, and for as long as batches are full."""

    def __init__(self, queue: DatabaseQueue) -> None:
        self._queue = queue
        self._due_at = 0.0

    def prune_due(self) -> bool:
        """Prune a batch if that is due. Return whether there is more."""
        retention_ms = self._queue.settings.retention
        if retention_ms is None or monotonic() < self._due_at:
            return False
        database = self._queue.database
        is_full = prune_finished(database, database.now_ms() - retention_ms) >= BATCH
        self._due_at = 0.0 if is_full else monotonic() + PRUNE_EVERY_S
        return is_full
