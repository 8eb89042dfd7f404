"""Running sync handlers in the thread of the hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from django.db import connections

from django_delayq.brokers.base import Settlement
from django_delayq.message import Message
from django_delayq.worker import attempt
from django_delayq.worker.connections import close_stale_connections
from django_delayq.worker.hands import Run
from django_delayq.worker.lanes import Lease
from django_delayq.worker.outcome import Outcome


@contextmanager
def in_thread(database: str, outcome: Outcome) -> Iterator[Run]:
    """A way to run messages for one thread; closes the thread's database connections at the end."""
    try:
        yield partial(run, database=database, outcome=outcome)
    finally:
        connections.close_all()


def run(lease: Lease, *, database: str, outcome: Outcome) -> Settlement:
    """Run one message in this thread."""
    claimed, handler = lease.claimed, lease.lane.handler
    begun = attempt.begin(claimed, handler, lease.now_ms(), lease.is_held)
    if not isinstance(begun, Message):
        outcome.ended(lease, begun, None, None)
        return begun
    outcome.begun(lease, begun)
    exception = attempt.run_sync(handler, begun, database)
    settlement = attempt.settle_for(claimed, handler, exception, lease.now_ms())
    outcome.ended(lease, settlement, begun, exception)
    close_stale_connections()
    return settlement
