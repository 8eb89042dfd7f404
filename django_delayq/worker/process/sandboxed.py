"""The child process of a sandbox: it runs the one message that its parent gives it, and ends.

It is started as `python -m django_delayq.worker.process.sandboxed FD PID`, with its end of a socket pair and the
parent's process id. Lines go over the socket: the child writes an empty one when it is ready; the parent writes the job
as JSON and then, after each renewal, the time until which the lease is held; the child answers with a `Report` as JSON.
Before that, it writes the progress of the handler when that has changed, after at most a second.
"""

import os
import select
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
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


def main(fd: int, parent: int) -> None:
    """Run the one message that the parent gives."""
    die_with_parent(parent)
    with taken_signals(_leave_to_parent):
        os.set_inheritable(fd, False)
        connection = socket.socket(fileno=fd)
        django.setup()
        from django_delayq.worker.executors.threads import in_thread  # it imports models, so the apps must be ready

        lines = Lines(connection)
        connection.sendall(b"\n")
        job, lease = _take(lines)
        answering = threading.Lock()  # no two lines may mix
        threading.Thread(target=_listen, args=(lines, lease, connection, answering), daemon=True).start()
        with in_thread(get_alias(job.using).database, AttemptEvents(job.worker)) as run:
            transition = run(lease)
        with answering:
            lease.ended = True
            connection.sendall(codec.dumps(Report(transition)) + b"\n")


def _take(lines: Lines) -> tuple[Job, Lease]:
    try:
        job: Job = codec.decode_data(lines.next(None) or b"", Job)
        logs.start(job.level)
        header = job.claimed.header
        handler = get_handler(job.using, header.key if header else "")
        if handler is None:  # only when parent and child import different code
            raise LookupError(f"The child process has no handler for {header!r}.")
    except (EOFError, OSError):  # the parent no longer needs this child
        os._exit(0)
    except Exception:
        logger.exception("A child process can't take a message.")
        os._exit(NOT_STARTED)
    now = monotonic()
    return job, Lease(job.claimed, handler, now, job.held_until, job.clock_ms, started_at=now)


def _listen(lines: Lines, lease: Lease, connection: socket.socket, answering: threading.Lock) -> None:
    """Note renewals, and end this process once its lease has run out (the parent may be frozen) or the parent is gone.

    Also tell the parent how far the handler is. If the handler has ended by then, leave the process to end by itself.
    """
    with suppress(EOFError, OSError):
        while (left_s := lease.held_until - monotonic()) > 0:
            line = lines.next(min(left_s, PROGRESS_EVERY_S))
            if line is not None:
                lease.held_until = float(line)
            with answering:
                if lease.progress != lease.written_progress and not lease.ended:
                    lease.written_progress = lease.progress
                    connection.sendall(PROGRESS + lease.written_progress.encode() + b"\n")
    if not lease.ended:
        os._exit(LEASE_ENDED)


def _leave_to_parent(signum: int) -> None:
    """Ignore the signal: the parent ends its child, and a signal to all processes must not end it earlier."""


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
