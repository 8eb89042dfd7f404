"""Child processes as their parent sees them: each runs a batch of messages in order, and never talks to the broker."""

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from time import monotonic

from django_delayq.core.errors import HandlerTimeout
from django_delayq.support.units import to_text
from django_delayq.worker import frames
from django_delayq.worker.batches import Batch
from django_delayq.worker.child import LEASE_ENDED, NOT_STARTED
from django_delayq.worker.frames import Assign, Handshake, Report
from django_delayq.worker.prefetch import TIME_SLICE_S as RUN_S

START_S = 60.0
"""How long a child may take to load the site's code."""
LOOK_S = 1.0
"""How often a waiting parent checks that its child lives: a grandchild may hold the socket open."""
LEAST_LOOK_S = 0.04
END_S = 5.0

_RINGS = 64


class ChildUnavailableError(Exception):
    """A child process can't be given messages: none was started."""


class ChildDiedError(Exception):
    """A child process ended by itself while it ran a message."""


class ChildGaveUpError(Exception):
    """A child process ended, or was ended, because the lease of its message had ended."""


class Child:
    """A running child process. Raises `ChildUnavailableError` when it can't start."""

    def __init__(self, worker: str, using: str, max_memory: int | None) -> None:
        self.resident = 0
        """How many bytes of memory it took when it last looked."""
        self._max_memory = max_memory
        self._gave_up = False
        self._connection, theirs = socket.socketpair()
        answers, their_answers = socket.socketpair()
        self._answers = answers
        self._inbox = frames.Inbox(answers)
        with theirs, their_answers:
            fds = [theirs.fileno(), their_answers.fileno()]
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "django_delayq.worker.child", *map(str, fds), str(os.getpid())],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # the terminal's Ctrl-C is for the parent
            )
        try:
            self._tell(Handshake(worker, using, logging.getLogger("django_delayq").level, max_memory))
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def run(self, batch: Batch) -> None:
        """Run a batch, which is told of each end. After this raises anything, the child is of no more use.

        Raises `HandlerTimeout`, `ChildUnavailableError`, `ChildDiedError` or `ChildGaveUpError`. Then the messages left
        in the batch have not ended, and only the first of them can have started.
        """
        batch.begin(monotonic(), self._give_up)
        if self._gave_up:  # there was nothing to stop before
            raise ChildGaveUpError
        told = batch.told(batch.left)
        self._held_until = told.held_until
        self._tell(told)
        try:
            while batch.left:
                self._note(batch, self._hear(self._wait_s(batch)))
                if batch.left:
                    self._look_after(batch)
        except (EOFError, OSError):
            ending = self._ending()
            self._end(batch)
            raise ending from None

    @property
    def death(self) -> str:
        """Return how its process ended; '' while it lives."""
        code = self._process.poll()
        return "" if code is None else _death(code)

    @property
    def is_full(self) -> bool:
        """Return whether it takes more memory than it may."""
        return self._max_memory is not None and self.resident > self._max_memory

    def kill(self) -> None:
        """Kill the process at once."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._answers.close()

    def close(self) -> None:
        """End the process when it is idle: it exits by itself once its socket is closed."""
        self._connection.close()
        self._answers.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def _look_after(self, batch: Batch) -> None:
        if batch.left[0].is_over_time():
            raise self._timeout(batch)
        if not frames.is_writable(self._connection):
            # A child that holds the interpreter's lock, or is stopped, reads nothing. A full buffer would make this
            # thread wait for it, and then no time-out would end it.
            return
        if batch.held_until() != self._held_until:
            self._tell_on(Assign(batch.held_until()))
        if batch.is_slow():
            self._tell_on(Assign(batch.held_until(), give_back=True))
        elif not self.is_full and (more := batch.refill()):
            self._tell_on(batch.told(more))

    def _tell_on(self, told: Assign) -> None:
        self._held_until = told.held_until
        frames.send(self._connection, told)

    def _give_up(self) -> None:
        self._gave_up = True
        self._process.kill()

    def _timeout(self, batch: Batch) -> HandlerTimeout | ChildGaveUpError:
        """Kill the process of a batch whose first message ran for too long, and return how that message ends.

        It may have ended at the last moment.
        """
        self._end(batch)
        if not batch.left or not batch.left[0].is_over_time():
            return ChildGaveUpError()
        text = to_text(batch.left[0].timeout_s * 1000)
        return HandlerTimeout(f"It ran for longer than {text}; its process was killed.")

    def _end(self, batch: Batch) -> None:
        """Kill the process, and take in what it answered before."""
        self._process.kill()
        self._process.wait()
        self._note(batch, self._inbox.read())

    def _note(self, batch: Batch, answers: Iterable[Report]) -> None:
        for answer in answers:
            batch.note(answer)
            self.resident = answer.resident or self.resident

    def _tell(self, value: object) -> None:
        try:
            frames.send(self._connection, value)
        except OSError as error:
            raise ChildUnavailableError(str(self._ending())) from error

    def _wait_until_ready(self) -> None:
        until = monotonic() + START_S
        try:
            while not self._hear(min(until - monotonic(), LOOK_S)):
                if monotonic() >= until:
                    raise ChildUnavailableError(f"it is not ready after {START_S:g} s")
        except (EOFError, OSError) as error:
            raise ChildUnavailableError(str(self._ending())) from error

    def _wait_s(self, batch: Batch) -> float:
        """Return how long to wait for the end of a batch before the next look at its answers."""
        first, now = batch.left[0], monotonic()
        until_renewal = max(self._held_until - now, LEAST_LOOK_S) / 4
        look_s = LOOK_S if len(batch.left) == 1 else RUN_S
        return min(look_s, until_renewal, first.started_at + first.timeout_s - now)

    def _hear(self, within_s: float) -> list[Report]:
        """Return its answers when it rings, or after `within_s`. Raises `EOFError` or `OSError` when it is gone."""
        if frames.is_readable(self._connection, max(within_s, 0)):
            if not self._connection.recv(_RINGS):
                raise EOFError("it closed its socket")
        elif self._process.poll() is not None:
            raise EOFError("it ended")
        return self._inbox.read()

    def _ending(self) -> ChildDiedError | ChildGaveUpError | ChildUnavailableError:
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return ChildDiedError("its process closed its socket")
        if self._gave_up or code == LEASE_ENDED:
            return ChildGaveUpError()
        if code == NOT_STARTED:
            return ChildUnavailableError("it can't take its messages: see what it said")
        return ChildDiedError(_death(code))


def _death(code: int) -> str:
    return f"its process died ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
