"""The child process: runs one handler at a time for its parent, and ends with it.

Started as `python -m django_delayq.worker.child FD PID`: its end of a socket pair, and its parent.
"""

import base64
import os
import queue
import select
import socket
import sys
import threading
from time import monotonic
from typing import Any

import django

from django_delayq.brokers.base import Claimed, Header
from django_delayq.conf import get_alias
from django_delayq.handlers import get_handler
from django_delayq.safe_logs import logger
from django_delayq.worker import frames, logs
from django_delayq.worker.hands import Run
from django_delayq.worker.lanes import Lane, Lease
from django_delayq.worker.memory import resident
from django_delayq.worker.orphans import die_with_parent
from django_delayq.worker.outcome import Outcome
from django_delayq.worker.own_signals import taken_signals

LEASE_ENDED = 76
"""The exit code of a child whose parent didn't renew the lease in time."""
NOT_STARTED = 77
"""That of a child that can't take the message it was given."""


def main(fd: int, parent: int) -> None:
    """Serve the parent until it closes the socket."""
    die_with_parent(parent)
    with taken_signals(_leave_to_parent):
        os.set_inheritable(fd, False)
        connection = socket.socket(fileno=fd)
        django.setup()
        from django_delayq.worker.threads import ThreadHand  # it imports models, which the apps must be ready for

        hello = frames.receive(connection)
        logs.start(hello["level"])
        database = get_alias(hello["using"]).database
        run = ThreadHand(database, Outcome(hello["worker"])).run
        frames.send(connection, "ready")
        Serving(connection, hello["using"]).serve(run)


class Serving:
    """What the parent wants run, and for how long it may."""

    def __init__(self, connection: socket.socket, using: str) -> None:
        self._connection = connection
        self._using = using
        self._leases: queue.SimpleQueue[Lease] = queue.SimpleQueue()
        self._current: Lease | None = None

    def serve(self, run: Run) -> None:
        """Run what the parent sends, without end."""
        threading.Thread(target=self._listen, daemon=True).start()
        while True:
            settlement = run(self._leases.get())
            if settlement is None:
                os._exit(LEASE_ENDED)
            self._current = None  # before the answer: the next question follows it
            frames.send(self._connection, {"settlement": settlement, "resident": resident()})

    def _listen(self) -> None:
        """Listen beside the handler, which must end when its lease does: with the parent, or while that is frozen."""
        code = LEASE_ENDED
        try:
            while not self._lease_ended():
                if select.select([self._connection], [], [], self._left_s())[0]:
                    self._take(frames.receive(self._connection))
        except (EOFError, OSError):
            code = 0
        except Exception:
            logger.exception("A child process can't take a message.")
            code = NOT_STARTED
        finally:
            os._exit(code)

    def _take(self, told: dict[str, Any]) -> None:
        if "claimed" in told:
            self._current = lease_of(self._using, told)
            self._leases.put(self._current)
        elif lease := self._current:
            lease.held_until = told["held_until"]

    def _lease_ended(self) -> bool:
        return self._left_s() == 0

    def _left_s(self) -> float | None:
        """Seconds that the lease has left; None while nothing runs."""
        lease = self._current
        return max(lease.held_until - monotonic(), 0) if lease else None


def lease_of(using: str, question: dict[str, Any]) -> Lease:
    """The lease as the parent sent it. Both go by the machine's one monotonic clock."""
    fields = question["claimed"]
    claimed = Claimed(
        **fields | {"header": Header(**fields["header"]), "body": base64.b64decode(fields["body"])},
    )
    handler = get_handler(using, claimed.header.key if claimed.header else "")
    if handler is None:  # only when parent and child import different code
        raise LookupError(f"The child process has no handler for {claimed.header!r}.")
    now = monotonic()
    return Lease(claimed, Lane(handler, (), 1), now, question["held_until"], question["clock_ms"], started_at=now)


def _leave_to_parent(signum: int) -> None:
    """The parent ends its children; a signal to the whole group must not do it before."""


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
