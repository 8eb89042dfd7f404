"""Run a suspect alone in a child process, so that nothing else suffers if it crashes again.

To start a process takes longer than most handlers, and after a crash very many messages may be suspects, almost all of
them innocent: those that the dead worker held. So a child that has ended a message well runs the next one too. If it
dies then, nobody knows which of them is to blame, and the last one runs again, in a new child.
"""

import logging
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import monotonic

from django_delayq.brokers.base import Transition
from django_delayq.core import codec, transitions
from django_delayq.core.errors import HandlerTimeout
from django_delayq.core.transitions import is_at_most_once, with_history
from django_delayq.support.logging import logger
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.leases import Lease
from django_delayq.worker.prefetch import Run
from django_delayq.worker.process.death import ProcessGaveUp, SandboxDied, after_death, timeout_of
from django_delayq.worker.process.sandboxed import LEASE_ENDED, NOT_STARTED, PROGRESS, Job, Lines, Report
from django_delayq.worker.process.spawn import death_of, spawn
from django_delayq.worker.transactions import was_committed

START_S = 60.0
"""How long a child may take to load the site's code, in seconds."""
LOOK_S = 1.0
"""How often a waiting parent checks that its child lives, in seconds: a grandchild may hold the socket open."""
END_S = 5.0
MOST_RUNS = 100
"""The most messages that a child runs, so that what they leave behind in it does not add up."""
RESTART_PAUSE_MS = 1_000
"""How long a message waits if its child process can't run it: the next one may fail as well."""


class SandboxUnavailableError(Exception):
    """A child process can't start, or can't take its message."""


@contextmanager
def in_sandboxes(worker: str, using: str, events: AttemptEvents) -> Iterator[Run]:
    """Yield a function that runs messages in child processes. End the last child at the end."""
    sandboxes = Sandboxes(worker, using, events)
    try:
        yield sandboxes.run
    finally:
        sandboxes.close()


class Sandboxes:
    """The child processes in which one thread runs messages, one at a time."""

    def __init__(self, worker: str, using: str, events: AttemptEvents) -> None:
        self._worker = worker
        self._using = using
        self._events = events
        self._kept: Sandbox | None = None

    def run(self, lease: Lease) -> Transition | None:
        """Run one message, and return how its lease ends; None leaves it to lapse.

        Only this message is charged if the process dies.
        """
        self._events.starting(lease)
        lease.cancel = _nothing_to_stop
        try:
            transition = self._run(lease)
            if transition is not None:
                self._events.settling(lease, transition)
            return transition
        except (OSError, SandboxUnavailableError) as error:
            return _put_off(lease, error)
        except (HandlerTimeout, SandboxDied, ProcessGaveUp) as ending:
            return after_death(lease, ending, self._events)
        except Exception:  # the child's answer can't be read
            logger.exception("Message %r is left to lapse.", lease.claimed.id, extra={"id": lease.claimed.id})
            return None
        finally:
            lease.cancel = lease.on_cancel_request = None

    def close(self) -> None:
        """End the child that is kept for the next message."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _run(self, lease: Lease) -> Transition | None:
        if self._kept is not None and is_at_most_once(lease.claimed.header, lease.handler):
            self.close()  # it may not run again
        sandbox, self._kept = self._kept, None
        if sandbox is not None:
            try:
                return self._run_in(sandbox, lease)
            except (SandboxDied, SandboxUnavailableError) as death:
                if was_committed(lease.claimed, lease.handler):
                    raise
                logger.info(
                    "Message %r runs again, in a new process: the one that died (%s) had run others before.",
                    lease.claimed.id, death, extra={"id": lease.claimed.id},
                )  # fmt: skip
                lease.cancel, lease.on_cancel_request = _nothing_to_stop, None
        return self._run_in(Sandbox(), lease)

    def _run_in(self, sandbox: "Sandbox", lease: Lease) -> Transition | None:
        """Run a message in a child. Keep the child if it answers."""
        job = Job(self._worker, self._using, _level(), lease.claimed, lease.clock_ms, lease.held_until)
        try:
            transition = sandbox.run(lease, job)
        except BaseException:
            sandbox.kill()
            sandbox.close()
            raise
        if sandbox.runs < MOST_RUNS:
            self._kept = sandbox
        else:
            sandbox.close()
        return transition


def _nothing_to_stop() -> None:
    """Do nothing: while the child starts, there is no message to stop."""


def _put_off(lease: Lease, error: Exception) -> Transition:
    logger.error("A child process can't run message %r (%s); trying again.", lease.claimed.id, error)
    return transitions.release(lease.claimed, RESTART_PAUSE_MS)


def _level() -> int:
    return logging.getLogger("django_delayq").level


class Sandbox:
    """A child process, as its parent sees it. Raises `SandboxUnavailableError` when it can't start."""

    def __init__(self) -> None:
        self.runs = 0
        """The number of messages that it has got."""
        self._gave_up = False
        self._socket, theirs = socket.socketpair()
        self._lines = Lines(self._socket)
        with theirs:
            self._process = spawn("django_delayq.worker.process.sandboxed", [theirs.fileno()])
        try:
            if self._line(within_s=START_S) is None:
                raise SandboxUnavailableError(f"it is not ready after {START_S:g} s")
        except EOFError:
            ending = death_of(self._wait())
            self.close()
            raise SandboxUnavailableError(ending) from None
        except BaseException:
            self.kill()
            self.close()
            raise

    def run(self, lease: Lease, job: Job) -> Transition | None:
        """Let the child run the message, and return how its lease ends; None leaves it to lapse.

        Raises `HandlerTimeout`, `SandboxDied`, `ProcessGaveUp` or `SandboxUnavailableError`, and `DataMismatch` for an
        answer that can't be read.
        """
        self.runs += 1
        lease.started_at = monotonic()
        lease.cancel = lease.on_cancel_request = self._kill
        if not lease.is_held() or lease.cancel_request is not None:  # lost or cancelled before there was one to stop
            raise ProcessGaveUp
        told = job.held_until = lease.held_until
        try:
            self._socket.sendall(codec.dumps(replace(job, claimed=replace(job.claimed, history=""))) + b"\n")
            while not (line := self._line(self._wait_s(lease, told)) or b"") or line.startswith(PROGRESS):
                if line:
                    lease.note_progress(line.removeprefix(PROGRESS).decode())
                if lease.is_over_time():
                    raise timeout_of(lease)
                if lease.held_until != told:
                    told = lease.held_until
                    self._tell(told)
        except (EOFError, OSError):
            raise self._ending() from None
        report: Report = codec.decode_data(line, Report)
        return None if report.transition is None else with_history(report.transition, lease.claimed)

    def kill(self) -> None:
        """Kill the process at once."""
        self._process.kill()

    def close(self) -> None:
        """Let the process end by itself, so that it writes its output and runs its exit functions.

        Kill it after 5 s.
        """
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
            return
        self._process.kill()
        self._process.wait()

    def _wait_s(self, lease: Lease, held_until: float) -> float:
        now = monotonic()
        until_renewal = max(held_until - now, 0.04) / 4
        return max(min(LOOK_S, until_renewal, lease.started_at + lease.timeout_s - now), 0)

    def _tell(self, held_until: float) -> None:
        # A child whose handler holds the interpreter's lock reads nothing, and a full buffer must not delay the
        # time-out.
        with suppress(BlockingIOError):
            self._socket.send(b"%r\n" % held_until, socket.MSG_DONTWAIT)

    def _line(self, within_s: float) -> bytes | None:
        """Return the next line; None if none comes in time. Raises `EOFError` or `OSError` if the child is gone."""
        until = monotonic() + within_s
        while (line := self._lines.next(max(min(until - monotonic(), LOOK_S), 0))) is None:
            if self._process.poll() is not None and (line := self._lines.next(0)) is None:
                raise EOFError("it ended")
            if line is not None or monotonic() >= until:
                break
        return line

    def _kill(self) -> None:
        self._gave_up = True
        self._process.kill()

    def _ending(self) -> Exception:
        code = self._wait()
        if self._gave_up or code == LEASE_ENDED:
            return ProcessGaveUp()
        if code == NOT_STARTED:
            return SandboxUnavailableError("it can't take its message: see what it said")
        return SandboxDied(death_of(code))

    def _wait(self) -> int:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(END_S)
        self._process.kill()
        return self._process.wait()
