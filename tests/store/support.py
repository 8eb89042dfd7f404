"""What the tests of the store share."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from django_delayq.brokers.base import Claimed, Want
from django_delayq.store import StoredBroker

LEASE_MS = 60_000
WANT = [Want("default", "k", 100)]


def claim(broker: StoredBroker, worker: str = "w") -> list[Claimed]:
    """The messages of a claim that finds some. Due times are rounded up, so what is due now may be due in a moment."""
    while not (messages := broker.claim(WANT, lease_ms=LEASE_MS, worker=worker).messages):
        broker.wait(1)
    return messages


def alarms(broker: StoredBroker) -> int:
    """How many alarms wait at the broker."""
    return sum(each.pending + each.ready for each in broker.clock.counts().waiting)


@contextmanager
def rolled_back(using: str) -> Iterator[None]:
    """A transaction that is rolled back at its end, or a savepoint of the open one."""
    with transaction.atomic(using=using):
        yield
        transaction.set_rollback(True, using=using)
