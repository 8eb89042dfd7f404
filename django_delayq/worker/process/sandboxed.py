"""The child process of a sandbox: it runs the messages that its parent gives it, one at a time.

It is started as `python -m django_delayq.worker.process.sandboxed FD PID`, with its end of a socket pair and the
parent's process id. Lines go over the socket: the child writes an empty one when it is ready; the parent writes a job
as JSON and then, after each renewal, the time until which the lease is held; the child answers with a `Report` as JSON.
Before that, it writes the progress of the handler when that has changed, after at most a second. The child ends when
the parent closes the socket.
"""

import os
import select
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic

import django

from django_delayq.api.handlers import get_handler
from django_delayq.brokers.base import Claimed, Transition
from django_delayq.conf import get_alias
from django_delayq.core import codec
from django_delayq.support.logging import logger
from django_delayq.worker import logs
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.leases import Lease
from django_delayq.worker.lifecycle import taken_signals
from django_delayq.worker.process.spawn import die_with_parent

LEASE_ENDED = 76
"""The exit code of a process that ended itself because a lease was lost, or not renewed in time."""
NOT_STARTED = 77
"""The exit code of a child that can't run the message it was given."""

PROGRESS = b"progress "
"""The beginning of a line that tells how far the handler is."""
PROGRESS_EVERY_S = 1.0

_PART = 1 << 16


@dataclass(slots=True)
class Job:
    """A message to run, with the worker and the alias that claimed it, and the level to log from.

    `clock_ms` plus the monotonic time in milliseconds is the time of the authoritative clock.
    """

    worker: str
    using: str
    level: int
    claimed: Claimed
    clock_ms: float
    held_until: float


@dataclass(slots=True)
class Report:
    """How the lease of the message ends; None leaves it to lapse."""

    transition: Transition | None


class Lines:
    """The lines that come in on a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()

    def next(self, within_s: float | None) -> bytes | None:
        """Return the next line; None if nothing comes within `within_s` seconds (None waits for ever).

        Raises `EOFError` or `OSError` when the other side is gone.
        """
        while b"\n" not in self._received:
            if not self._is_readable(within_s):
                return None
            part = self._connection.recv(_PART)
            if not part:
                raise EOFError("the other side is gone")
            self._received += part
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received[:] = rest
        return line

    def _is_readable(self, within_s: float | None) -> bool:
        poll = select.poll()  # `select.select` takes no descriptor over 1023, and a worker may have as many connections
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(None if within_s is None else within_s * 1000))


class Parent:
    """The parent's end of the talk: jobs and renewals come from it, reports and progress go to it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = Lines(connection)
        self._jobs: SimpleQueue[tuple[Job, Lease] | None] = SimpleQueue()
        self._lock = threading.Lock()  # no two lines may mix, and none may be about a lease that has ended
        self._lease: Lease | None = None
        """The lease of the message that runs, or is about to."""

    def take(self) -> tuple[Job, Lease] | None:
        """Wait for the next job, and return it; None once the parent is gone."""
        return self._jobs.get()

    def report(self, transition: Transition | None) -> None:
        """Tell how the lease ends."""
        with self._lock:
            self._lease = None
            self._connection.sendall(codec.dumps(Report(transition)) + b"\n")

    def listen(self) -> None:
        """Take jobs and renewals, and end this process once the lease of what runs ends (the parent may be frozen).

        Also tell the parent how far the handler is. When the parent is gone, end the process if a message runs;
        otherwise leave it to end by itself.
        """
        with suppress(EOFError, OSError):
            # Read once: the message may end at any time
            while (lease := self._lease) is None or (left_s := lease.held_until - monotonic()) > 0:
                line = self._lines.next(None if lease is None else min(left_s, PROGRESS_EVERY_S))
                if line is not None:
                    self._hear(line)
                self._tell_progress()
        if self._lease is not None:
            os._exit(LEASE_ENDED)
        self._jobs.put(None)

    def _hear(self, line: bytes) -> None:
        if line.startswith(b"{"):
            job, self._lease = _read(line)
            self._jobs.put((job, self._lease))
        elif (lease := self._lease) is not None:  # otherwise the message ended while this was on its way
            lease.held_until = float(line)

    def _tell_progress(self) -> None:
        with self._lock:
            lease = self._lease
            if lease is not None and lease.progress != lease.written_progress:
                lease.written_progress = lease.progress
                self._connection.sendall(PROGRESS + lease.written_progress.encode() + b"\n")


def main(fd: int, parent_id: int) -> None:
    """Run the messages that the parent gives."""
    die_with_parent(parent_id)
    with taken_signals(_leave_to_parent):
        os.set_inheritable(fd, False)
        connection = socket.socket(fileno=fd)
        django.setup()
        from django_delayq.worker.executors.threads import in_thread  # it imports models, so the apps must be ready

        parent = Parent(connection)
        connection.sendall(b"\n")
        threading.Thread(target=parent.listen, daemon=True).start()
        while (taken := parent.take()) is not None:
            job, lease = taken
            with in_thread(get_alias(job.using).database, AttemptEvents(job.worker)) as run:
                transition = run(lease)
            parent.report(transition)


def _read(line: bytes) -> tuple[Job, Lease]:
    try:
        job: Job = codec.decode_data(line, Job)
        logs.start(job.level)
        header = job.claimed.header
        handler = get_handler(job.using, header.key if header else "")
        if handler is None:  # only when parent and child import different code
            raise LookupError(f"The child process has no handler for {header!r}.")
    except Exception:
        logger.exception("A child process can't take a message.")
        os._exit(NOT_STARTED)
    now = monotonic()
    return job, Lease(job.claimed, handler, now, job.held_until, job.clock_ms, started_at=now)


def _leave_to_parent(signum: int) -> None:
    """Ignore the signal: the parent ends its child, and a signal to all processes must not end it earlier."""


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
