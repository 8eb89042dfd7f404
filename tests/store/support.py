"""What the tests of the store share."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django.db import transaction

from django_delayq.brokers import get_broker
from django_delayq.brokers.base import Claimed, Want
from django_delayq.store import StoredBroker
from tests.servers.process import PrivateServer
from tests.worker.processes import Site, site_with

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


def site_on(
    delayq: dict[str, Any], database_env: dict[str, str], server: PrivateServer
) -> AbstractContextManager[Site]:
    """A site with that store, whose workers run on it, and whose handlers call from beside the server."""
    return site_with(delayq | {"DATABASE": "default"}, get_broker(), database_env, server.directory)
