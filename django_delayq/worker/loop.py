"""The loop of a worker: maintenance, claim, sleep. Running and settling happen in other threads."""

import threading
from collections.abc import Callable
from time import monotonic

from django_delayq.brokers.base import Backend, WorkerInfo
from django_delayq.worker.dispatcher import Dispatcher
from django_delayq.worker.lifecycle import Heartbeat
from django_delayq.worker.logs import OutageLog, guarded, waits
from django_delayq.worker.maintenance import Maintenance, MemoryLimit, Pauses

UNSTARTED_LOOK_S = 0.25
"""How often it looks for messages that wait for a slot for too long."""
ENDING_LOOK_S = 0.02
"""How often a worker that ends by itself looks whether the last message is settled."""


class Loop:
    """Claims and sleeps until it is stopped, has claimed all it may, or has nothing left to drain."""

    def __init__(
        self,
        backend: Backend,
        *,
        dispatcher: Dispatcher,
        suspects: Dispatcher,
        maintenance: Maintenance,
        pauses: Pauses,
        outage_log: OutageLog,
        heartbeat: Heartbeat,
        info: WorkerInfo,
        held: Callable[[], int],
        memory: MemoryLimit,
        drain: bool,
    ) -> None:
        self._backend = backend
        self._dispatcher = dispatcher
        self._suspects = suspects
        self._maintenance = maintenance
        self._pauses = pauses
        self._outage_log = outage_log
        self._heartbeat = heartbeat
        self._info = info
        self._held = held
        self._memory = memory
        self._drain = drain
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._asleep = False
        self._may_find = True  # a claim, as far as is known

    def run(self) -> None:
        """Turn until there is a reason to stop. Nothing that the broker does ends it."""
        backoff = None
        while not self._stopping.is_set():
            if self._woken.is_set():
                self._woken.clear()  # only here, where a claim follows: a wake-up may come at any time
                self._may_find = True
            held = self._held()
            idle = not held and not self._dispatcher.busy and not self._suspects.busy
            if idle and self._dispatcher.spent:
                return
            self._may_find |= self._drain and idle  # the last claim, which finds nothing more
            try:
                found = self._turn(has_leases=held > 0)
            except Exception as error:  # noqa: BLE001 - a worker outlives whatever its broker answers
                self._outage_log.begin("claiming", error)
                self._may_find = True
                backoff = backoff or waits()
                self._stopping.wait(next(backoff))
                continue
            self._outage_log.end("claiming")
            backoff = None
            self._heartbeat.beat()
            # Busy now: what it found may have been refused by a limit, and comes again.
            if self._drain and idle and not (found or self._dispatcher.busy or self._maintenance.suspects_due):
                return
            if not found:
                self._sleep()

    def stop(self) -> None:
        """End the loop after the turn it is in."""
        self._stopping.set()
        self.wake()

    def wake(self) -> None:
        """End the sleep, or skip the next: a slot is free, or there is a reason to stop. From any thread."""
        self._woken.set()
        if self._asleep:
            guarded(self._backend.queue.wake)  # the thread that calls must live on

    def _turn(self, *, has_leases: bool) -> bool:
        paused = self._pauses.known
        self._maintenance.do_due(self._info)
        self._pauses.read_due()
        self._may_find |= self._pauses.known != paused
        if self._memory.is_set and self._dispatcher.has_run and not self._dispatcher.spent and self._memory.check():
            self._dispatcher.close()
            self._suspects.close()
        if has_leases:
            self._dispatcher.look_after_unstarted()
            self._suspects.look_after_unstarted()
        found = self._may_find and self._dispatcher.claim()
        if self._maintenance.suspects_due and not self._suspects.busy:
            self._maintenance.suspects_due = self._suspects.claim()
        return found

    def _sleep(self) -> None:
        self._may_find = True
        timeout = max(self._maintenance.next_at - monotonic(), 0)
        if self._drain or self._dispatcher.spent:
            timeout = min(timeout, ENDING_LOOK_S)
        elif self._dispatcher.busy:
            timeout = min(timeout, UNSTARTED_LOOK_S)
        if (next_at := self._dispatcher.next_at) is not None:  # read once: it is None as soon as it has passed
            timeout = min(timeout, max(next_at - monotonic(), 0))
        if not self._dispatcher.wanted:
            # Every slot is busy. The broker would end its wait for due messages, which can't be claimed now.
            self._woken.wait(timeout)
            return
        self._asleep = True
        if not self._woken.is_set():
            self._may_find = self._backend.queue.wait(timeout) or self._dispatcher.skipped
        self._asleep = False
