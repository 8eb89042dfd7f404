"""The loop of a worker: maintenance, claim, sleep. Running and settling happen in other threads."""

import threading
from time import monotonic

from django_delayq.brokers.base import Backend
from django_delayq.support.logging import logger
from django_delayq.support.units import size_text
from django_delayq.worker.dispatcher import Dispatcher
from django_delayq.worker.leases import Leases
from django_delayq.worker.lifecycle import HeartbeatFile
from django_delayq.worker.logs import OutageLog, backoff_delays, guarded
from django_delayq.worker.maintenance import Maintenance, resident
from django_delayq.worker.options import Options

ENDING_LOOK_S = 0.02
"""How often a worker that is about to end checks whether its last message is settled, in seconds."""


class Loop:
    """The loop that claims and sleeps until it is stopped, has claimed all it may, or has nothing left to drain."""

    def __init__(
        self,
        backend: Backend,
        options: Options,
        *,
        dispatcher: Dispatcher,
        suspects: Dispatcher,
        maintenance: Maintenance,
        leases: Leases,
        outage_log: OutageLog,
        heartbeat: HeartbeatFile,
    ) -> None:
        self._backend = backend
        self._dispatcher = dispatcher
        self._suspects = suspects
        self._dispatchers = [dispatcher]  # those that may be busy; that of suspects joins them with the first suspect
        self._maintenance = maintenance
        self._leases = leases
        self._outage_log = outage_log
        self._heartbeat = heartbeat
        self._drain = options.drain
        self._max_memory = options.max_memory
        self._may_end = options.drain or options.max_messages is not None or options.max_memory is not None
        self.exceeds_memory = False
        """Whether the process was found to take more than `--max-memory`."""
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._asleep = False
        self._may_find = True  # whether a claim may find anything

    def run(self) -> None:
        """Repeat turns until there is a reason to stop. No error of the broker ends the loop."""
        backoff = None
        while not self._stopping.is_set():
            if self._woken.is_set():
                self._woken.clear()  # only where a claim follows, because a wake-up may come at any time
                self._may_find = True
            busy = [each for each in self._dispatchers if each.busy]
            idle = self._may_end and not busy and not len(self._leases)
            if idle and self._dispatcher.spent:
                return
            self._may_find |= self._drain and idle  # a drain ends only with a claim that finds nothing
            try:
                found = self._turn(busy)
            except Exception as error:  # noqa: BLE001 - a worker outlives whatever its broker answers
                self._outage_log.begin("claiming", error)
                self._may_find = True
                backoff = backoff or backoff_delays()
                self._stopping.wait(next(backoff))
                continue
            if backoff is not None:
                self._outage_log.end("claiming")
                backoff = None
            if monotonic() >= self._heartbeat.due_at:
                self._heartbeat.beat()
            # Ask again whether the dispatcher is busy: a limit may have refused what this turn found, so that it comes
            # again.
            if self._drain and idle and not (found or self._dispatcher.busy or self._maintenance.suspects_due):
                return
            if not found:
                self._sleep()

    def stop(self) -> None:
        """End the loop after the current turn."""
        self._stopping.set()
        self.wake()

    def wake(self) -> None:
        """End the loop's sleep, or skip the next one, because a slot is free or the loop must stop.

        Any thread may call it.
        """
        self._woken.set()
        if self._asleep:
            guarded(self._backend.queue.wake)  # an error must not end the thread that calls this

    def _turn(self, busy: list[Dispatcher]) -> bool:
        self._may_find |= self._maintenance.do_due()
        if self._max_memory is not None and not self.exceeds_memory and self._dispatcher.has_run:
            self._check_memory(self._max_memory)
        for dispatcher in busy:
            dispatcher.look_after_unstarted()
        found = self._may_find and self._dispatcher.claim()
        if self._maintenance.suspects_due and self._suspects not in busy:
            self._dispatchers = [self._dispatcher, self._suspects]
            self._maintenance.suspects_due = self._suspects.claim()
        return found

    def _check_memory(self, limit: int) -> None:
        """Stop claiming if this process takes more than `limit` bytes."""
        taken = resident()
        if taken > limit:
            self.exceeds_memory = True
            logger.info(
                "Stopping: this worker takes %s, and --max-memory is %s. It finishes what runs.",
                size_text(taken), size_text(limit),
            )  # fmt: skip
            self._dispatcher.close()
            self._suspects.close()

    def _sleep(self) -> None:
        self._may_find = True
        timeout = min(self._maintenance.due_at - monotonic(), self._dispatcher.wait_s())
        if self._may_end and (self._drain or self._dispatcher.spent):
            timeout = min(timeout, ENDING_LOOK_S)
        timeout = max(timeout, 0)
        if not self._dispatcher.wanted:
            # Every slot is busy, so don't wait at the broker: due messages, which can't be claimed now, would end its
            # wait.
            self._woken.wait(timeout)
            return
        self._asleep = True
        if not self._woken.is_set():
            self._may_find = self._backend.queue.wait(timeout) or self._dispatcher.skipped
        self._asleep = False
