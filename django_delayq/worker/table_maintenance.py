"""The thread of a worker that looks after the tables: the window, the sweep, and what is pruned."""

import threading
from collections.abc import Callable
from functools import partial
from time import monotonic

from django.db import connections

from django_delayq.brokers.base import Tables
from django_delayq.worker.logs import OutageLog

EVERY_S = 1.0
PRUNE_EVERY_S = 60.0


class TableMaintenance:
    """The thread that schedules the window, sweeps and prunes, on a connection of its own.

    So neither claims nor settlements wait for it. It also asks a timer that is away whether it is back, so that nothing
    else has to wait for the answer.
    """

    def __init__(self, tables: Tables, lease_ms: int, outage_log: OutageLog) -> None:
        self._tables = tables
        self._lease_ms = lease_ms
        self._outage_log = outage_log
        self._prune_at = 0.0
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
                self._try("sweeping", self._tables.sweep)
                self._try("scheduling the window", partial(self._tables.keep_window, lease_ms=self._lease_ms))
                if not self._try("pruning", self.prune_due):
                    self._closed.wait(EVERY_S - (monotonic() - started_at))
        finally:
            connections.close_all()

    def _try(self, what: str, work: Callable[[], bool | None]) -> bool:
        """Do a part of the work that `what` names. Return whether there is more."""
        try:
            is_left = work()
        except Exception as error:  # noqa: BLE001 - whatever it is, only another try can help
            self._outage_log.begin(what, error)
            return False
        if self._outage_log.failing:
            self._outage_log.end(what)
        return bool(is_left)

    def prune_due(self) -> bool:
        """Prune a batch once a minute, and at once after a full one. Return whether there is more."""
        if monotonic() < self._prune_at:
            return False
        is_full = self._tables.prune()
        self._prune_at = 0.0 if is_full else monotonic() + PRUNE_EVERY_S
        return is_full
