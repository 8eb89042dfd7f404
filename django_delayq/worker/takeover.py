"""Take over at once what a dead worker of this host held, without waiting for its leases to run out.

A heartbeat names the processes that look after a worker's leases. It is signed with the site's SECRET_KEY, so that
somebody who can only write to the broker can't name other processes. A worker can tell for certain whether processes of
its own host are gone. So an old heartbeat does no harm: it only says where to look. A process is gone if:

- its id is free, or belongs to a process with another start time, because the kernel has used it again;
- it is a zombie, none of whose threads can run.

A process that is stopped (SIGSTOP) is alive, and one that can't be looked at counts as alive. Its leases have to run
out, like those of a worker on another host.

A process id means something only on one host: in one boot of one kernel, in one namespace of process ids, by one clock.
Machines that were restored from one snapshot share the id of the boot, so the name of the machine counts too. A
container with its own namespace is a host of its own. Linux may use the name of a namespace again, but only once every
process in it has ended.

No message is ever held by two workers: a takeover is an early lapse, and is fenced like one. The step that takes the
token away checks that the dead worker still holds the row, or that the end of the lease is unchanged. So if two workers
take over at the same time, one of them changes nothing. If the dead worker were alive after all, its settlements would
be refused. The name of a worker is never used again, because a part of it is random.

An at-most-once message is buried, as at a lapse. It never starts a second time, whatever part of it may still run.

Processes that a worker started may outlive it. A child process that runs handlers is killed by the kernel together with
its worker, before the worker counts as gone, and also ends by itself when its socket closes. It can't settle its
message, because it never talks to the broker. A supervisor may end the leases of a worker that died under it, and knows
best what had started. So the heartbeat names it too, and the worker counts as dead only once both are gone. But a
program that a handler has started may run on while the message runs a second time. After a takeover it does not even
have the rest of the lease in which to end. End it with its worker, as systemd and containers do, or guard what it does
with `message.token`.
"""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from django.core.signing import BadSignature, Signer

from django_delayq.brokers.base import Backend, ProcessInfo, WorkerInfo
from django_delayq.core import codec
from django_delayq.support.logging import logger
from django_delayq.worker.events import UnstartedEvents

_PROC = Path("/proc")
_HOST = ("ns/pid", "ns/time")  # a start time counts from the boot, by the clock of the time namespace
_ENDED = ("Z", "X")


class Takeovers:
    """One worker's watch over the other workers of its host."""

    def __init__(self, backend: Backend, unstarted_events: UnstartedEvents) -> None:
        self._backend = backend
        self._unstarted_events = unstarted_events
        self._others: list[WorkerInfo] = []
        self._ended: set[str] = set()  # whoever can write to the broker can put their heartbeats back

    def learn(self, own: WorkerInfo, workers: Sequence[WorkerInfo] | None = None) -> None:
        """Note the other workers of this host, including any that died just now.

        `workers` are all workers that are alive or seem to be. With None, the broker is asked for them.
        """
        self._others = self._neighbours(own, workers)

    def take_over(self, own: WorkerInfo) -> None:
        """End the leases of workers that are gone. If this raises, the next call tries again."""
        if not any(map(_is_dead, self._others)):
            return
        self._others = self._neighbours(own)  # read again: without workers that have stopped in good order
        dead = [one.name for one in self._others if _is_dead(one)]
        if dead:
            self._end_leases(dead)

    def _neighbours(self, own: WorkerInfo, workers: Sequence[WorkerInfo] | None = None) -> list[WorkerInfo]:
        if not own.processes:
            return []
        hosts = {process.host for process in own.processes}
        return [
            one
            for one in (self._backend.presence.workers() if workers is None else workers)
            if one.name != own.name
            and one.name not in self._ended
            and one.processes
            and hosts.issuperset(each.host for each in one.processes)
            and _is_signed(one)
        ]

    def _end_leases(self, dead: Sequence[str]) -> None:
        taken = self._backend.queue.take_over(dead)
        self._unstarted_events.report(taken.buried, [])
        if taken.left:
            return
        for name in dead:
            self._backend.presence.leave(name)
            self._ended.add(name)
            logger.warning("Worker %s is dead: what it held is taken over.", name, extra={"worker": name})


def _is_dead(worker: WorkerInfo) -> bool:
    return all(map(is_gone, worker.processes))


def signature_of(worker: WorkerInfo) -> str:
    """Return the signature for a worker's heartbeat. It covers the worker's processes and its name.

    The name is never used again.
    """
    return _signer().signature(_signed(worker))


def _is_signed(worker: WorkerInfo) -> bool:
    signer = _signer()
    try:
        signer.unsign(f"{_signed(worker)}{signer.sep}{worker.signature}")
    except BadSignature:
        return False
    return True


def _signer() -> Signer:
    return Signer(salt="django_delayq.heartbeat")


def _signed(worker: WorkerInfo) -> str:
    return codec.dumps([worker.name, worker.processes]).decode()


def processes_of(*pids: int) -> list[ProcessInfo]:
    """Return the processes `pids` in a form that other processes of this host recognise.

    Return [] if the system can't tell the host or the start time of each.
    """
    host = _host()
    found = [ProcessInfo(host, pid, _started(_fields(_PROC / str(pid)))) for pid in pids]
    return found if host and all(one.started for one in found) else []


def is_gone(process: ProcessInfo) -> bool:
    """Return whether a process of this host is known to have ended."""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # another user's
    directory = _PROC / str(process.pid)
    fields = _fields(directory)
    if not fields:
        return False  # it may not be looked at, or is just ending
    return _started(fields) != process.started or not _can_run(directory, fields)


@cache
def _host() -> str:
    """Return an id for this host, the same for all processes that see the same pids and start times; '' if unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespaces = [os.readlink(_PROC / "self" / name) for name in _HOST if _is_there(name)]
    except OSError:
        return ""
    return " ".join([boot, *namespaces, os.uname().nodename])


def _is_there(name: str) -> bool:
    return name == "ns/pid" or os.path.lexists(_PROC / "self" / name)  # kernels before 5.6 have one clock


def _can_run(directory: Path, fields: Sequence[str]) -> bool:
    """Return whether any thread of a process can run: the first one may have ended before the others."""
    if fields[0] not in _ENDED:
        return True
    try:
        threads = [_fields(thread) for thread in (directory / "task").iterdir()]
    except OSError:
        return False
    return any(thread[0] not in _ENDED for thread in threads if thread)


def _started(fields: Sequence[str]) -> int:
    return int(fields[19]) if fields else 0


def _fields(directory: Path) -> list[str]:
    """Return the fields of a process's or thread's `stat` file, from its state on; [] if it can't be read."""
    try:
        return (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
