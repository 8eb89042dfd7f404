"""The child process: runs the messages that its parent hands it, one after another, and ends with it.

It is started as `python -m django_delayq.worker.child FD ANSWERS PID`, with its ends of two socket pairs, and its
parent. The first brings its orders, and takes a byte (a "ring") when it has little or nothing left. The second takes
its answers, for which the parent need not wake.
"""

import os
import socket
import sys
import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

import django

from django_delayq.api.registry import get_handler
from django_delayq.brokers.base import Transition
from django_delayq.conf import get_alias
from django_delayq.support.logging import logger
from django_delayq.worker import frames, logs
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.frames import Assign, Handshake, Job, Report
from django_delayq.worker.memory import resident
from django_delayq.worker.parent_death import die_with_parent
from django_delayq.worker.prefetch import Lease, PrefetchBuffer
from django_delayq.worker.signal_handlers import taken_signals

if TYPE_CHECKING:
    from django_delayq.worker.executors.base import Run

LEASE_ENDED = 76
"""The exit code of a child whose parent didn't renew the leases in time."""
NOT_STARTED = 77
"""The exit code of a child that can't take the messages it was given."""
LOOK_S = 0.005
"""How often, between messages, a child measures its memory, where that is limited: this costs as much as a message."""


def main(fd: int, answers_fd: int, parent: int) -> None:
    """Serve the parent until it closes the socket."""
    die_with_parent(parent)
    with taken_signals(_leave_to_parent):
        os.set_inheritable(fd, False)
        os.set_inheritable(answers_fd, False)
        connection, answers = socket.socket(fileno=fd), socket.socket(fileno=answers_fd)
        django.setup()
        from django_delayq.worker.executors.threads import (
            in_thread,  # it imports models, which the apps must be ready for
        )

        hello = frames.receive(connection, Handshake)
        logs.start(hello.level)
        database = get_alias(hello.using).database
        with in_thread(database, AttemptEvents(hello.worker)) as run:
            ChildMain(connection, answers, hello).serve(run)


class ChildMain:
    """The messages that the parent wants run, and the time it gives them.

    A thread listens to it beside the handlers.
    """

    def __init__(self, connection: socket.socket, answers: socket.socket, hello: Handshake) -> None:
        self._connection = connection
        self._answers = answers
        self._using = hello.using
        self._max_memory = hello.max_memory
        self._look_at = 0.0
        self._lanes: dict[str, PrefetchBuffer] = {}
        self._changed = threading.Condition(threading.Lock())  # over the rest
        self._unstarted: deque[Lease] = deque()
        self._current: Lease | None = None
        self._held_until = 0.0
        self._ring_at = 0
        self._is_full = False
        self._is_over = False

    def serve(self, run: "Run") -> None:
        """Run what the parent sends, until it has no more.

        Then the process ends as any other: what was printed is written, and exit functions are called.
        """
        threading.Thread(target=self._listen, daemon=True).start()
        with self._changed:
            self._say(Report())
        while (lease := self._next()) is not None:
            transition = run(lease)
            if transition is None:
                os._exit(LEASE_ENDED)
            self._end(lease, transition)

    def _next(self) -> Lease | None:
        with self._changed:
            while not self._unstarted:
                if self._is_over:
                    return None
                self._changed.wait()
            self._exit_if_lost()
            lease = self._current = self._unstarted.popleft()
        lease.started_at = monotonic()
        return lease

    def _end(self, lease: Lease, transition: Transition) -> None:
        now = monotonic()
        with self._changed:
            self._current = None
            answer = Report(transition, lease.started_at, now)
            if self._max_memory is not None and (now >= self._look_at or not self._unstarted):
                self._look_at = now + LOOK_S
                answer.resident = resident()
                self._is_full = answer.resident > self._max_memory
                if self._is_full:
                    answer.unstarted = self._take_back()
            self._say(answer)

    def _say(self, answer: Report) -> None:
        frames.send(self._answers, answer)
        if not self._is_busy() or len(self._unstarted) == self._ring_at:
            self._connection.send(b"\0")

    def _is_busy(self) -> bool:
        return self._current is not None or bool(self._unstarted)

    def _take_back(self) -> list[str]:
        ids = [lease.claimed.id for lease in self._unstarted]
        self._unstarted.clear()
        return ids

    def _listen(self) -> None:
        """Listen beside the handler, and end the process with its leases: with the parent, or while that is frozen."""
        try:
            while True:
                if frames.is_readable(self._connection, self._left_s()):
                    self._take(frames.receive(self._connection, Assign))
        except (EOFError, OSError):
            self._end_with_parent()
        except Exception:  # noqa: BLE001 - whatever it is, nothing reaches this process any more
            try:
                logger.exception("A child process can't take a message.")
            finally:
                os._exit(NOT_STARTED)

    def _end_with_parent(self) -> None:
        with self._changed:
            if self._is_busy():
                os._exit(0)
            self._is_over = True
            self._changed.notify()

    def _take(self, told: Assign) -> None:
        leases = [self._lease_of(handed) for handed in told.batch]
        with self._changed:
            self._unstarted.extend(leases)
            self._held_until = told.held_until
            for lease in (self._current, *self._unstarted):
                if lease is not None:
                    lease.held_until = told.held_until
            if leases:
                self._ring_at = told.ring_at
                self._changed.notify()
            if (told.give_back or self._is_full) and (ids := self._take_back()):
                self._say(Report(unstarted=ids))

    def _left_s(self) -> float | None:
        """Return the seconds that the leases have left; None while there are none."""
        with self._changed:
            self._exit_if_lost()
            return max(self._held_until - monotonic(), 0) if self._is_busy() else None

    def _exit_if_lost(self) -> None:
        if self._is_busy() and monotonic() >= self._held_until:
            os._exit(LEASE_ENDED)

    def _lease_of(self, handed: Job) -> Lease:
        header = handed.claimed.header
        key = header.key if header else ""
        buffer = self._lanes.get(key)
        if buffer is None:
            handler = get_handler(self._using, key)
            if handler is None:  # only when parent and child import different code
                raise LookupError(f"The child process has no handler for {header!r}.")
            buffer = self._lanes[key] = PrefetchBuffer(handler, (), 1)
        return Lease(handed.claimed, buffer, monotonic(), 0.0, handed.clock_ms)


def _leave_to_parent(signum: int) -> None:
    """Ignore the signal: the parent ends its children, and a signal to the whole group must not do it before."""


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
