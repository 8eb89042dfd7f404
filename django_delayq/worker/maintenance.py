"""Do a worker's tasks beside claiming, once a second.

`Maintenance` runs in the main loop: leases that ran out, heartbeats, takeovers, pauses, warnings of overdue handlers.
`TableMaintenance` is a thread for the tables: it schedules the window, sweeps, and prunes.
"""

import resource
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from time import monotonic, time

from django.db import connections

from django_delayq import signals
from django_delayq.api.registry import WHERE_HANDLERS_ARE
from django_delayq.brokers.base import (
    Backend,
    ExecutorInfo,
    Pause,
    RunInfo,
    Tables,
    WorkerInfo,
    covering,
    earliest,
    is_asked_for,
)
from django_delayq.core.errors import BrokerUnavailable, DelayqError
from django_delayq.core.lanes import queue_of
from django_delayq.store.queries import repeat_at
from django_delayq.support.logging import logger
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import size_text, to_text
from django_delayq.worker.events import UnstartedEvents
from django_delayq.worker.leases import Lease
from django_delayq.worker.logs import OutageLog, guarded
from django_delayq.worker.takeover import Takeovers, processes_of, signature_of

EVERY_S = 1.0
PRUNE_EVERY_S = 60.0
HEARTBEAT_EVERY_S = 7.0
"""How often a heartbeat is sent, in seconds. A worker counts as alive for 15 s after each, so one may get lost."""
LEAST_PAUSE_S = 0.05
MOST_RUNS = 32
"""The most running handlers that a heartbeat lists. The list is short because every dashboard reads it."""
_STATM = Path("/proc/self/statm")
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


class Pauses:
    """The pauses that were last read from the backend, without those that have ended by themselves."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.known: Sequence[Pause] = []
        """The pauses in force."""
        self._heard = -1

    @property
    def next_end_ms(self) -> int | None:
        """Return when the next pause ends by itself, by the authoritative clock; None if none does."""
        return earliest(*(pause.until_ms for pause in self.known))

    def cover(self, lease: Lease) -> bool:
        """Return whether a lease may not start, because its queue or key is paused."""
        header = lease.claimed.header
        return header is not None and bool(covering(self.known, header.queue, header.key))

    def read_due(self) -> None:
        """Read the pauses if they may have changed.

        An error ends this turn of the loop before its claim, so nothing is claimed until a read has worked.
        """
        heard = self._backend.presence.pause_version  # before the read, so that a change meanwhile is read next time
        if heard == self._heard:
            return
        self.take(self._backend.presence.pauses())
        self._heard = heard

    def end(self, now_ms: int) -> None:
        """Drop the pauses that have ended by `now_ms`."""
        self.take([pause for pause in self.known if pause.holds(now_ms)])

    def take(self, pauses: list[Pause]) -> None:
        """Replace the known pauses with `pauses`, and log the changes."""
        before, self.known = self.known, pauses
        for pause in pauses:
            if pause not in before:
                logger.info("Paused %s: %s. Nothing of it starts until %s.", pause.names, pause.reason, _end(pause))
        names = {pause.names for pause in pauses}
        for pause in before:
            if pause.names not in names:
                logger.info("Resumed %s.", pause.names)


class Lanes:
    """The lanes of other priorities than 0 that this worker's queues have (core/lanes.py), as the backend says.

    A lane is remembered for good, also if the broker loses it: its messages may be somewhere. A queue has at most 200.
    """

    def __init__(self, backend: Backend, queues: Collection[str]) -> None:
        self._backend = backend
        self._queues = frozenset(queues)
        self.known: frozenset[str] = frozenset()
        self._heard = -1

    def read_due(self) -> None:
        """Read the lanes if there may be new ones. See `Pauses.read_due`."""
        heard = self._backend.presence.pause_version
        if heard != self._heard:
            self.add(self._backend.presence.lanes())
            self._heard = heard

    def add(self, lanes: Collection[str]) -> None:
        """Add those of the lanes that this worker's queues have to the known ones."""
        ours = {lane for lane in lanes if queue_of(lane) in self._queues}
        if not self.known.issuperset(ours):
            self.known = self.known.union(ours)


def _end(pause: Pause) -> str:
    if pause.until_ms is None:
        return "it is resumed"
    try:
        return from_ms(pause.until_ms).isoformat(timespec="seconds")
    except OverflowError:  # someone else wrote it
        return f"{pause.until_ms} ms"


class Maintenance:
    """The tasks of one worker beside claiming, each done when it is due. `info` is the worker's heartbeat."""

    def __init__(
        self,
        backend: Backend,
        info: WorkerInfo,
        held: Callable[[], Sequence[Lease]],
        pauses: Pauses,
        lanes: Lanes,
        unstarted_events: UnstartedEvents,
        outage_log: OutageLog,
    ) -> None:
        self._backend = backend
        self._alias = backend.alias
        self._info = info
        self._held = held
        self._pauses = pauses
        self._lanes = lanes
        self._unstarted_events = unstarted_events
        self._outage_log = outage_log
        self._takeovers = Takeovers(backend, unstarted_events)
        self._heartbeat_at = 0.0
        self.due_at = 0.0
        """When there is something to do again, by the monotonic clock."""
        self.suspects_due = False
        """Whether suspects wait for a child process."""

    def do_due(self) -> bool:
        """Do the tasks that are due. Return whether the pauses or the lanes have changed."""
        before = self._pauses.known, self._lanes.known
        now = monotonic()
        if now >= self.due_at:
            self.due_at = now + EVERY_S
            self._try("maintenance", self._maintain, ends_turn=BrokerUnavailable)
            held = self._held()
            warn_overdue(held)
            if now >= self._heartbeat_at:  # together with maintenance: a turn of its own would mean one claim more
                self._heartbeat_at = now + HEARTBEAT_EVERY_S
                self._try("sending a heartbeat", partial(self._send_heartbeat, held))
            self._try("taking over", partial(self._takeovers.take_over, self._info))
        self._pauses.read_due()
        self._lanes.read_due()
        return (self._pauses.known, self._lanes.known) != before

    def _try(self, what: str, work: Callable[[], None], *, ends_turn: type[Exception] | tuple[()] = ()) -> None:
        """Do one task. Raise its error only if it is of the type `ends_turn`; log any other error.

        Other errors must not stop the other tasks or the claims. For example, a RabbitMQ server that is out of memory
        takes no heartbeats, but still delivers alarms.
        """
        try:
            work()
        except ends_turn:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the next turn tries again
            self._outage_log.begin(what, error)
        else:
            if self._outage_log.failing:
                self._outage_log.end(what)

    def _send_heartbeat(self, held: Sequence[Lease]) -> None:
        self._info.running, self._info.runs = len(held), runs_of(held)
        heard = self._backend.presence.heartbeat(self._info)
        if heard.pauses is not None:
            self._pauses.take(heard.pauses)
        if heard.lanes is not None:
            self._lanes.add(heard.lanes)
        if heard.error is not None:
            raise heard.error
        self._takeovers.learn(self._info, heard.workers)

    def _maintain(self) -> None:
        result = self._backend.queue.maintain(lease_ms=self._alias.options.lease)
        self.suspects_due = result.suspects_due > 0
        self._pauses.end(result.now_ms)
        next_end_ms = earliest(result.next_lease_end_ms, self._pauses.next_end_ms)
        if next_end_ms is not None:
            until_end_s = max((next_end_ms - result.now_ms) / 1000, LEAST_PAUSE_S)
            self.due_at = min(self.due_at, monotonic() + until_end_s)
        if result.buried or result.without_body:
            self._unstarted_events.report(result.buried, result.without_body)
        if result.dropped:
            logger.warning("Maintenance dropped %d old error(s), see error_retention and error_max.", result.dropped)
        if result.lost_record:
            logger.error("What the broker held may be gone: %s", result.lost_record)
            signals.emit(signals.broker_changed, type(self._backend), using=self._alias.name, reason=result.lost_record)


class TableMaintenance:
    """The thread that schedules the window, sweeps and prunes.

    It has its own connection, so that claims and settlements don't wait for it. It also checks whether an unreachable
    timer is back, so that nothing else has to wait for the answer.
    """

    def __init__(
        self, tables: Tables, lease_ms: int, outage_log: OutageLog, parked: "ParkedKeys | None" = None
    ) -> None:
        self._tables = tables
        self._lease_ms = lease_ms
        self._outage_log = outage_log
        self._parked = parked
        self._prune_at = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._maintain_forever, name="delayq-tables", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float) -> None:
        """End the thread with its connection, and wait at most `timeout` seconds for that."""
        self._closed.set()
        self._thread.join(timeout)

    def _maintain_forever(self) -> None:
        try:
            while not self._closed.is_set():
                started_at = monotonic()
                self._try("sweeping", self._tables.sweep)
                self._try("scheduling the window", partial(self._tables.keep_window, lease_ms=self._lease_ms))
                self._try("putting occurrences of schedules", self._tables.put_occurrences)
                self._try("looking after sequences and batches", self._tables.mend_follow_ups)
                if self._parked is not None:
                    self._try("looking for keys without a handler", self._parked.warn_due)
                if not self._try("pruning", self.prune_due):
                    self._closed.wait(EVERY_S - (monotonic() - started_at))
        finally:
            connections.close_all()

    def _try(self, what: str, work: Callable[[], bool | None]) -> bool:
        """Do some work, and log under the name `what` when it begins to fail and when it works again.

        Return whether there is more of it to do.
        """
        try:
            is_left = work()
        except Exception as error:  # noqa: BLE001 - whatever it is, only another try can help
            self._outage_log.begin(what, error)
            return False
        if self._outage_log.failing:
            self._outage_log.end(what)
        return bool(is_left)

    def prune_due(self) -> bool:
        """Prune a batch if the last one was full, or over a minute ago. Return whether there may be more to prune."""
        if monotonic() < self._prune_at:
            return False
        is_full = self._tables.prune()
        self._prune_at = 0.0 if is_full else monotonic() + PRUNE_EVERY_S
        return is_full


class ParkedKeys:
    """Warns once of each key that has due messages and no handler in any live worker.

    `keys` are those that this worker has a handler for.
    """

    def __init__(self, backend: Backend, tables: Tables, keys: Collection[str]) -> None:
        self._backend = backend
        self._tables = tables
        self._known = set(keys)
        self._look_at = monotonic() + HEARTBEAT_EVERY_S  # by then workers that start together know of one another

    def warn_due(self) -> None:
        """Look for parked keys and warn of them, if it is time to look.

        After a slow look the next one comes later: MySQL reads every row.
        """
        began_at = monotonic()
        if began_at >= self._look_at:
            self.warn()
            self._look_at = repeat_at(began_at, monotonic(), HEARTBEAT_EVERY_S)

    def warn(self) -> None:
        """Warn of each parked key that was not warned of before.

        The live workers are read only if a key that is not known yet has due messages.
        """
        pairs = self._tables.due_pairs_except(self._known)
        workers = self._backend.presence.workers() if pairs else []
        for queue, key in pairs:
            if key not in self._known and not is_asked_for(queue, key, workers):
                self._known.add(key)
                logger.warning(
                    "Messages of key %r are due in queue %r, and no live worker has a handler for it. %s",
                    key, queue, WHERE_HANDLERS_ARE, extra={"key": key, "queue": queue},
                )  # fmt: skip


def new_info(
    name: str, queues: Sequence[str], keys: Sequence[str], executors: Sequence[ExecutorInfo], pids: Sequence[int]
) -> WorkerInfo:
    """Return the heartbeat of a worker that starts now. Its leases may be taken over once all `pids` have ended."""
    info = WorkerInfo(name, list(queues), list(keys), 0, int(time() * 1000), executors=list(executors))
    info.processes = processes_of(*pids)
    info.signature = signature_of(info)
    return info


def runs_of(leases: Sequence[Lease]) -> list[RunInfo]:
    """Return at most `MOST_RUNS` of the messages that have started and are not settled, the longest-running first."""
    started = sorted((lease for lease in leases if lease.started_at), key=lambda lease: lease.started_at)
    return [_run_of(lease) for lease in started[:MOST_RUNS]]


def _run_of(lease: Lease) -> RunInfo:
    header = lease.claimed.header
    queue, key = (header.queue, header.key) if header else ("", lease.handler.key)
    return RunInfo(lease.claimed.id, queue, key, lease.ms_of(lease.started_at))


def warn_overdue(leases: Sequence[Lease]) -> None:
    """Warn once of each handler that has run past its time-out where nothing can stop it."""
    for lease in leases:
        if lease.runs and lease.cancel is None and not lease.overdue:
            guarded(partial(_warn_if_overdue, lease))  # an error with one lease must not stop the claims


def _warn_if_overdue(lease: Lease) -> None:
    if not lease.is_over_time():
        return
    lease.overdue = True
    logger.warning(
        "Message %r (%s) is overdue: it runs for over %s, and a thread can't be stopped (--processes can).",
        lease.claimed.id, lease.handler.key, to_text(lease.timeout_s * 1000),
        extra={"id": lease.claimed.id, "key": lease.handler.key, "token": lease.claimed.token},
    )  # fmt: skip


class MemoryRefused(DelayqError):
    """The value of `--max-memory` can't be used."""


def resident() -> int:
    """Return how many bytes of memory this process takes now.

    On systems without /proc, return the most it ever took.
    """
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT


def check_limit(limit: int) -> None:
    """Raise `MemoryRefused` if this process already takes over `limit` bytes, so it would stop after one message."""
    taken = resident()
    if taken > limit:
        raise MemoryRefused(
            f"--max-memory {size_text(limit)} is less than the {size_text(taken)} that this worker takes before its "
            "first message; give it more, such as 512MiB."
        )
