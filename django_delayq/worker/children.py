"""Child processes as their parent sees them: each runs one sync handler at a time and never talks to the broker."""

import logging
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from django_delayq.brokers.base import Settlement, Verb
from django_delayq.durations import to_text
from django_delayq.errors import HandlerTimeout
from django_delayq.worker import frames
from django_delayq.worker.child import LEASE_ENDED, NOT_STARTED
from django_delayq.worker.lanes import Lease

START_S = 60.0
"""How long a child may take to load the site's code."""
LOOK_S = 1.0
"""How often a waiting parent looks whether its child lives: a grandchild may hold the socket open."""
LEAST_LOOK_S = 0.04
END_S = 5.0


class ChildUnavailableError(Exception):
    """A child process can't be given a message: none was started."""


class ChildDiedError(Exception):
    """A child process ended by itself while it ran a message."""


class ChildGaveUpError(Exception):
    """A child process ended since the lease of its message had."""


class Child:
    """A running child process. Raises `ChildUnavailableError` when it can't start."""

    def __init__(self, worker: str, using: str) -> None:
        self.resident = 0
        """How many bytes it took after its last message."""
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "django_delayq.worker.child", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # the terminal's Ctrl-C is for the parent
            )
        try:
            self._tell({"worker": worker, "using": using, "level": logging.getLogger("django_delayq").level})
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def run(self, lease: Lease) -> Settlement:
        """Run one message. The child is of no more use after whatever this raises.

        Raises `HandlerTimeout`, `ChildUnavailableError`, `ChildDiedError` or `ChildGaveUpError`.
        """
        lease.started_at = monotonic()
        lease.abandon = self._process.kill
        if not lease.is_held():  # given up before there was something to kill
            raise ChildGaveUpError
        self._told = lease.held_until
        self._tell({"claimed": lease.claimed, "clock_ms": lease.clock_ms, "held_until": self._told})
        try:
            answer = self._answer(lease.started_at + lease.timeout_s, partial(self._tell_renewal, lease))
        except (EOFError, OSError) as error:
            raise self._ending() from error
        lease.abandon = None
        if answer is None:
            raise HandlerTimeout(f"It ran for longer than {to_text(lease.timeout_s * 1000)}; its process was killed.")
        settlement = answer["settlement"]
        self.resident = answer["resident"]
        return Settlement(**settlement | {"verb": Verb(settlement["verb"])})

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def close(self) -> None:
        """End it when it is idle: it ends by itself once its socket is closed."""
        self._connection.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def _tell(self, value: object) -> None:
        try:
            frames.send(self._connection, value)
        except OSError as error:
            raise ChildUnavailableError(str(self._ending())) from error

    def _wait_until_ready(self) -> None:
        try:
            answer = self._answer(monotonic() + START_S, lambda: LOOK_S)
        except (EOFError, OSError) as error:
            raise ChildUnavailableError(str(self._ending())) from error
        if answer != "ready":
            raise ChildUnavailableError(f"it is not ready after {START_S:g} s")

    def _tell_renewal(self, lease: Lease) -> float:
        """Tell the child when its lease was renewed. Gives the seconds until the next look."""
        if lease.held_until != self._told:
            self._told = lease.held_until
            frames.send(self._connection, {"held_until": self._told})
        return min(LOOK_S, max(self._told - monotonic(), LEAST_LOOK_S) / 4)

    def _answer(self, until: float, look: Callable[[], float]) -> Any:
        """What the child says; None when it says nothing until then. Raises `EOFError` or `OSError` when it is gone.

        `look` is called again after the seconds that it gives.
        """
        while (left := until - monotonic()) > 0:
            if select.select([self._connection], [], [], min(left, look()))[0]:
                return frames.receive(self._connection)
            if self._process.poll() is not None:
                raise EOFError("it ended")
        return None

    def _ending(self) -> ChildDiedError | ChildGaveUpError | ChildUnavailableError:
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return ChildDiedError("its process closed its socket")
        if code == LEASE_ENDED:
            return ChildGaveUpError()
        if code == NOT_STARTED:
            return ChildUnavailableError("it can't take its message: see what it said")
        return ChildDiedError(f"its process died ({f'signal {-code}' if code < 0 else f'exit code {code}'})")
