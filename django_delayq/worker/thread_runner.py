"""Run sync handlers in the thread of the hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from django.db import connections

from django_delayq.brokers.base import Transition
from django_delayq.core.message import Message
from django_delayq.worker import attempt
from django_delayq.worker.connections import (
    close_read_only_connections,
    close_stale_connections,
    health_checks_are_on,
)
from django_delayq.worker.cut_short import cut_short
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.executors.base import Run
from django_delayq.worker.log_exceptions import guarded
from django_delayq.worker.prefetch import Lease

CHECK_EVERY_S = 1.0
"""A look at the connections costs as much as a small handler; each thread takes one this often, and after a failure."""


@contextmanager
def in_thread(database: str, outcome: AttemptEvents) -> Iterator[Run]:
    """Yield a way to run messages for one thread; close the thread's database connections at the end."""
    try:
        yield ThreadRunner(database, outcome).run
    finally:
        connections.close_all()


class ThreadRunner:
    """Runs messages in its caller's thread."""

    def __init__(self, database: str, outcome: AttemptEvents) -> None:
        self._database = database
        self._outcome = outcome
        self._check_every_s = 0.0 if health_checks_are_on() else CHECK_EVERY_S
        self._check_at = 0.0

    def run(self, lease: Lease) -> Transition | None:
        """Run one message, and return how its lease ends. None lets it lapse: its handler was told that it was lost."""
        if lease.started_at >= self._check_at:
            self._check_at = lease.started_at + self._check_every_s
            guarded(close_stale_connections)
        claimed, handler = lease.claimed, lease.buffer.handler
        begun = attempt.begin(claimed, handler, lease.now_ms(), lease.tell_held)
        if not isinstance(begun, Message):
            self._outcome.ended(lease, begun, None, None)
            return begun
        self._outcome.begun(lease, begun)
        exception = attempt.run_sync(claimed, handler, begun, self._database)
        transition = attempt.after(claimed, handler, exception, begun.started_ms, lease.now_ms())
        if lease.abandoned and not lease.lost and not transition.is_written:
            return cut_short(lease, "its handler was told so")
        self._outcome.ended(lease, transition, begun, exception)
        if exception is not None:
            self._check_at = 0.0  # before the next message: it may have been the connection
            guarded(partial(close_read_only_connections, exception))
        return transition
