"""The child process: runs one handler at a time for its parent, and ends with it.

Started as `python -m django_delayq.worker.child FD`, where FD is its end of a socket pair.
"""

import base64
import math
import os
import queue
import signal
import socket
import sys
import threading
from time import monotonic
from typing import Any

import django
from django.db import connections

from django_delayq.brokers.base import Claimed, Header
from django_delayq.conf import get_alias
from django_delayq.handlers import get_handler
from django_delayq.worker import frames, logs
from django_delayq.worker.hands import Run
from django_delayq.worker.lanes import Lane, Lease
from django_delayq.worker.outcome import Outcome
from django_delayq.worker.threads import ThreadHand


def main(fd: int) -> None:
    """Serve the parent until it closes the socket."""
    # Functions, not SIG_IGN, which would pass on to whatever a handler starts.
    signal.signal(signal.SIGTERM, _leave_to_parent)
    signal.signal(signal.SIGINT, _leave_to_parent)
    os.set_inheritable(fd, False)
    connection = socket.socket(fileno=fd)
    django.setup()
    hello = frames.receive(connection)
    logs.start(hello["level"])
    database = get_alias(hello["using"]).database
    run = ThreadHand(database, Outcome(hello["worker"])).run
    frames.send(connection, "ready")
    _serve(connection, hello["using"], run)


def _serve(connection: socket.socket, using: str, run: Run) -> None:
    questions: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read_forever, args=(connection, questions), daemon=True).start()
    while True:
        lease = lease_of(using, questions.get())
        frames.send(connection, run(lease))


def _read_forever(connection: socket.socket, questions: "queue.SimpleQueue[Any]") -> None:
    """Read beside the handler, to see at once that the parent is gone: the lease ends then, so must the handler."""
    try:
        while True:
            questions.put(frames.receive(connection))
    except (EOFError, OSError):
        connections.close_all()
        os._exit(0)


def lease_of(using: str, question: dict[str, Any]) -> Lease:
    """The lease as the parent sent it. The parent kills this process when it is lost."""
    fields = question["claimed"]
    claimed = Claimed(
        **fields | {"header": Header(**fields["header"]), "body": base64.b64decode(fields["body"])},
    )
    handler = get_handler(using, claimed.header.key if claimed.header else "")
    if handler is None:  # only when parent and child import different code
        raise LookupError(f"The child process has no handler for {claimed.header!r}.")
    now = monotonic()
    return Lease(claimed, Lane(handler, (), 1), now, math.inf, question["clock_ms"], started_at=now)


def _leave_to_parent(signum: int, frame: object) -> None:
    """The parent ends its children; a signal to the whole group must not do it before."""


if __name__ == "__main__":
    main(int(sys.argv[1]))
