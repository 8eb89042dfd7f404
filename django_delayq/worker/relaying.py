"""The thread of a worker that relays: from the store's rows to the broker, once a second."""

import threading
from collections.abc import Callable
from time import monotonic

from django.db import connections

from django_delayq.brokers.base import BATCH
from django_delayq.core.errors import PartlyUnavailable
from django_delayq.store.queue import DatabaseQueue
from django_delayq.store.relay import REBUILD_LOCK_MS, rebuild, relay, sweep
from django_delayq.support.logging import logger
from django_delayq.worker.outage_log import OutageLog
from django_delayq.worker.pruning import Pruning

EVERY_S = 1.0
SWEEP_EVERY_S = 5.0


class Relaying:
    """Relays on a connection of its own, so that neither claims nor settlements wait for it.

    This thread also asks a clock that is away whether it is back, so that nothing else has to wait for its answer; it
    sweeps; and it prunes.
    """

    def __init__(self, queue: DatabaseQueue, lease_ms: int, outage_log: OutageLog) -> None:
        self._queue = queue
        self._lease_ms = lease_ms
        self._outage_log = outage_log
        self._pruning = Pruning(queue)
        self._rebuild_lock_ms = REBUILD_LOCK_MS
        self._sweep_at = monotonic() + SWEEP_EVERY_S
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._relay_forever, name="delayq-relay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float) -> None:
        """End the thread, and its connection."""
        self._closed.set()
        self._thread.join(timeout)

    def _relay_forever(self) -> None:
        try:
            while not self._closed.is_set():
                started_at = monotonic()
                pages = [self._try("relaying", self._relay_page), self._try("pruning", self._pruning.prune_due)]
                if not any(pages):
                    self._closed.wait(EVERY_S - (monotonic() - started_at))
        finally:
            connections.close_all()

    def _try(self, what: str, page: Callable[[], bool]) -> bool:
        """Do one page of `what`. Returns whether there is more."""
        try:
            with self._queue.database.available():
                is_full = page()
        except Exception as error:  # noqa: BLE001 - whatever it is, only another try can help
            self._outage_log.begin(what, error)
            self._queue.degraded.begin_if_due()
            return False
        self._outage_log.end(what)
        return is_full

    def _relay_page(self) -> bool:
        if self._queue.broker.database is not None:  # its timer reads the rows by itself
            return False
        try:
            self._come_back()
        except PartlyUnavailable:
            self._relay()  # what answers goes on, beside the tables
            raise
        self._sweep_due()
        return self._relay() >= BATCH

    def _relay(self) -> int:
        return relay(self._queue.database, self._queue.timer, self._queue.settings.horizon)

    def _sweep_due(self) -> None:
        if monotonic() < self._sweep_at:
            return
        self._sweep_at = monotonic() + SWEEP_EVERY_S
        wants = self._queue.underfilled.requests()
        found = sweep(self._queue.database, self._queue.timer, self._queue.alarm_index, wants)
        if found:
            self._queue.lost_of |= {want.pair for want in wants}  # there may be very many more
            logger.warning("The broker had lost the alarms of %d overdue message(s): they are put again.", found)

    def _come_back(self) -> None:
        """Bring the clock back after an absence: it must answer, and have every alarm, before workers rely on it."""
        degraded = self._queue.degraded
        if degraded.away:
            self._queue.ask_timer(lease_ms=self._lease_ms)
        if self._queue.alarms_lost:
            self._rebuild()
        if degraded.on and not self._queue.alarms_lost:
            degraded.end()

    def _rebuild(self) -> None:
        began_at = monotonic()
        count = rebuild(self._queue.database, self._queue.timer, self._queue.settings.horizon, self._rebuild_lock_ms)
        if count is None:
            if (monotonic() - began_at) * 1000 > self._rebuild_lock_ms:  # perhaps one page took longer than the lock
                self._rebuild_lock_ms *= 2
        else:
            self._rebuild_lock_ms = REBUILD_LOCK_MS
            self._queue.alarms_lost = False
            if count:
                logger.warning(
                    "The broker had lost its alarms, or is new: those of %d message(s) are put again.", count
                )
