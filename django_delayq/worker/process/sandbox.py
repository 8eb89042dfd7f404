"""Run a suspect alone, in a child process of its own, so that nothing else suffers if it crashes again."""

import logging
import socket
import subprocess
from contextlib import suppress
from dataclasses import replace
from time import monotonic

from django_delayq.brokers.base import Transition
from django_delayq.core import codec, transitions
from django_delayq.core.errors import HandlerTimeout
from django_delayq.core.transitions import with_history
from django_delayq.support.logging import logger
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.leases import Lease
from django_delayq.worker.process.death import ProcessGaveUp, SandboxDied, after_death, timeout_of
from django_delayq.worker.process.sandboxed import LEASE_ENDED, NOT_STARTED, PROGRESS, Job, Lines, Report
from django_delayq.worker.process.spawn import death_of, spawn

START_S = 60.0
"""How long a child may take to load the site's code, in seconds."""
LOOK_S = 1.0
"""How often a waiting parent checks that its child lives, in seconds: a grandchild may hold the socket open."""
END_S = 5.0
RESTART_PAUSE_MS = 1_000
"""How long a message waits if its child process can't run it: the next one may fail as well."""


class SandboxUnavailableError(Exception):
    """A child process can't start, or can't take its message."""


def run_in_sandbox(worker: str, using: str, events: AttemptEvents, lease: Lease) -> Transition | None:
    """Run one message in a process of its own, and return how its lease ends; None leaves it to lapse.

    Only this message is charged if the process dies.
    """
    events.starting(lease)
    lease.cancel = _nothing_to_stop
    try:
        sandbox = Sandbox()
    except (OSError, SandboxUnavailableError) as error:
        return _put_off(lease, error)
    try:
        transition = sandbox.run(lease, Job(worker, using, _level(), lease.claimed, lease.clock_ms, lease.held_until))
        if transition is not None:
            events.settling(lease, transition)
        return transition
    except SandboxUnavailableError as error:
        return _put_off(lease, error)
    except (HandlerTimeout, SandboxDied, ProcessGaveUp) as ending:
        sandbox.kill()
        return after_death(lease, ending, events)
    except Exception:  # the child's answer can't be read
        logger.exception("Message %r is left to lapse.", lease.claimed.id, extra={"id": lease.claimed.id})
        sandbox.kill()
        return None
    finally:
        lease.cancel = lease.on_cancel_request = None
        sandbox.close()


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
