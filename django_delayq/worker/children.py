"""Child processes as their parent sees them: each runs one sync handler at a time and never talks to the broker."""

import logging
import math
import os
import select
import socket
import subprocess
import sys
from time import monotonic
from typing import Any

from django_delayq.brokers.base import Settlement, Verb
from django_delayq.durations import to_text
from django_delayq.errors import HandlerTimeout
from django_delayq.worker import frames
from django_delayq.worker.lanes import Lease

LOOK_S = 1.0
"""How often a waiting parent looks whether its child lives: a grandchild may hold the socket open."""
END_S = 5.0


class ChildDiedError(Exception):
    """A child process ended by itself."""


class Child:
    """A running child process. Raises `ChildDiedError` when it can't start."""

    def __init__(self, worker: str, using: str) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "django_delayq.worker.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # the terminal's Ctrl-C is for the parent
            )
        try:
            frames.send(
                self._connection, {"worker": worker, "using": using, "level": logging.getLogger("django_delayq").level}
            )
            if self._answer(until=math.inf) != "ready":
                raise ChildDiedError("it didn't say that it is ready")
        except BaseException:
            self.kill()
            raise

    def run(self, lease: Lease) -> Settlement:
        """Run one message. Raises `HandlerTimeout` or `ChildDiedError`; the child is of no more use then."""
        lease.started_at = monotonic()
        lease.abandon = self._process.kill
        if lease.lost:  # given up before there was something to kill
            raise ChildDiedError("its lease was lost before it started")
        answer = self._ask({"claimed": lease.claimed, "clock_ms": lease.clock_ms}, lease.started_at + lease.timeout_s)
        lease.abandon = None
        if answer is None:
            raise HandlerTimeout(f"It ran for longer than {to_text(lease.timeout_s * 1000)}; its process was killed.")
        return Settlement(**answer | {"verb": Verb(answer["verb"])})

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

    def _ask(self, question: object, until: float) -> Any:
        try:
            frames.send(self._connection, question)
        except OSError as error:
            raise ChildDiedError(self._ending()) from error
        return self._answer(until)

    def _answer(self, until: float) -> Any:
        """What the child says; None when it says nothing until then."""
        while (left := until - monotonic()) > 0:
            if select.select([self._connection], [], [], min(left, LOOK_S))[0]:
                try:
                    return frames.receive(self._connection)
                except (EOFError, OSError) as error:
                    raise ChildDiedError(self._ending()) from error
            if self._process.poll() is not None:
                raise ChildDiedError(self._ending())
        return None

    def _ending(self) -> str:
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return "it closed its socket"
        return f"signal {-code}" if code < 0 else f"exit code {code}"
