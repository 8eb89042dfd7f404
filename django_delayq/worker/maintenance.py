"""Do a worker's work beside claiming, once a second: maintenance, heartbeats, what is overdue or dead."""

from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from django_delayq import signals
from django_delayq.brokers.base import Backend, ExecutorInfo, MaintenanceResult, RunInfo, WorkerInfo, earliest
from django_delayq.core.errors import BrokerRefused, DelayqError
from django_delayq.support.logging import logger
from django_delayq.support.timestamps import wall_clock_ms
from django_delayq.support.units import to_text
from django_delayq.worker.events import UnstartedEvents
from django_delayq.worker.log_exceptions import guarded
from django_delayq.worker.outage_log import OutageLog
from django_delayq.worker.pauses import Pauses
from django_delayq.worker.prefetch import Lease
from django_delayq.worker.takeover import Takeovers, processes_of

EVERY_S = 1.0
HEARTBEAT_EVERY_S = 7.0
"""A worker counts as alive for 15 s after a heartbeat: one may be lost."""
LEAST_PAUSE_S = 0.05
MOST_RUNS = 32
"""The most running handlers that a heartbeat lists: every dashboard reads it."""


class Maintenance:
    """Does each task when it is due. `suspects_due` tells whether suspects wait for a child process."""

    def __init__(
        self,
        backend: Backend,
        alias: str,
        lease_ms: int,
        held: Callable[[], Sequence[Lease]],
        pauses: Pauses,
        unstarted_events: UnstartedEvents,
        outage_log: OutageLog,
    ) -> None:
        self._backend = backend
        self._alias = alias
        self._lease_ms = lease_ms
        self._held = held
        self._pauses = pauses
        self._unstarted_events = unstarted_events
        self._outage_log = outage_log
        self._takeovers = Takeovers(backend, unstarted_events, outage_log)
        self._due_at = 0.0
        self._heartbeat_at = 0.0
        self.suspects_due = False

    @property
    def next_at(self) -> float:
        """Return when there is something to do again, by the monotonic clock."""
        return self._due_at

    def do_due(self, info: WorkerInfo) -> None:
        """Do the tasks that are due."""
        now = monotonic()
        if now < self._due_at:
            return
        self._due_at = now + EVERY_S
        self._maintain()
        warn_overdue(self._held())
        if now >= self._heartbeat_at:  # along with maintenance: a turn of its own would claim once more
            self._heartbeat_at = now + HEARTBEAT_EVERY_S
            held = self._held()
            info.running, info.runs = len(held), runs_of(held)
            self._send_heartbeat(info)
        self._takeovers.take_over(info)

    def _send_heartbeat(self, info: WorkerInfo) -> None:
        """Send the heartbeat.

        A refusal ends no turn, because the broker may still give alarms (RabbitMQ that is out of memory).
        """
        try:
            self._pauses.take(self._backend.presence.heartbeat(info))
            self._takeovers.learn(info)
        except DelayqError as error:
            self._outage_log.begin("sending a heartbeat", error)
        else:
            self._outage_log.end("sending a heartbeat")

    def _maintain(self) -> None:
        """Have the broker do its part. A refusal, which somebody must mend, ends no turn, and no heartbeat."""
        try:
            result = self._backend.queue.maintain(lease_ms=self._lease_ms)
        except BrokerRefused as error:
            self._outage_log.begin("maintenance", error)
        else:
            self._outage_log.end("maintenance")
            self._act_on(result)

    def _act_on(self, result: MaintenanceResult) -> None:
        self.suspects_due = result.suspects_due > 0
        self._pauses.end(result.now_ms)
        next_end_ms = earliest(result.next_lease_end_ms, self._pauses.next_end_ms)
        if next_end_ms is not None:
            until_end_s = max((next_end_ms - result.now_ms) / 1000, LEAST_PAUSE_S)
            self._due_at = min(self._due_at, monotonic() + until_end_s)
        if result.buried or result.orphans:
            self._unstarted_events.report(result.buried, result.orphans)
        if result.dropped:
            logger.warning("Maintenance dropped %d old error(s), see error_retention and error_max.", result.dropped)
        if result.lost_record:
            logger.error("What the broker held may be gone: %s", result.lost_record)
            signals.emit(signals.broker_changed, type(self._backend), using=self._alias, reason=result.lost_record)


def new_info(
    name: str, queues: Sequence[str], keys: Sequence[str], executors: Sequence[ExecutorInfo], pids: Sequence[int]
) -> WorkerInfo:
    """Return the heartbeat of a worker that starts now, to whose leases the processes `pids` see."""
    info = WorkerInfo(name, list(queues), list(keys), 0, wall_clock_ms(), executors=list(executors))
    info.processes = processes_of(*pids)
    return info


def runs_of(leases: Sequence[Lease]) -> list[RunInfo]:
    """Return the handlers that run, those that have run for longest first."""
    started = sorted((lease for lease in leases if lease.started_at), key=lambda lease: lease.started_at)
    return [_run_of(lease) for lease in started[:MOST_RUNS]]


def _run_of(lease: Lease) -> RunInfo:
    header = lease.claimed.header
    queue, key = (header.queue, header.key) if header else ("", lease.buffer.handler.key)
    return RunInfo(lease.claimed.id, queue, key, lease.ms_of(lease.started_at))


def warn_overdue(leases: Sequence[Lease]) -> None:
    """Warn once of each handler that runs for longer than its time-out, where nothing can stop it."""
    for lease in leases:
        if lease.runs and lease.cancel is None and not lease.overdue:
            guarded(partial(_warn_if_overdue, lease))  # one that can't be looked at must not stop the claims


def _warn_if_overdue(lease: Lease) -> None:
    if not lease.is_over_time():
        return
    lease.overdue = True
    logger.warning(
        "Message %r (%s) is overdue: it runs for over %s, and a thread can't be stopped (--processes can).",
        lease.claimed.id, lease.buffer.handler.key, to_text(lease.timeout_s * 1000),
        extra={"id": lease.claimed.id, "key": lease.buffer.handler.key, "token": lease.claimed.token},
    )  # fmt: skip
