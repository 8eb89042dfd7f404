"""What the tests of the store share."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import pytest
from django.db import transaction

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Claimed, ClaimRequest, Window
from django_delayq.store import DatabaseBackend
from tests.brokers.rig import Carrier
from tests.servers.process import PrivateServer
from tests.worker.processes import Site, site_with

LEASE_MS = 60_000
WANT = [ClaimRequest("default", "k", 100)]
MOMENT_MS = 5
"""What was sent for now is due a little later, and not all at once: the database and Redis round up to a whole ms."""


def claim(broker: DatabaseBackend, worker: str = "w") -> list[Claimed]:
    """All that is due now or in a moment, once there is some."""
    messages: list[Claimed] = []
    while True:
        found = broker.queue.claim(WANT, lease_ms=LEASE_MS, worker=worker)
        messages += found.messages
        next_ms = math.inf if found.next_due_ms is None else found.next_due_ms - found.now_ms
        if messages and next_ms > MOMENT_MS:
            return messages
        broker.queue.wait(1)


def clock_of(broker: DatabaseBackend) -> Carrier:
    """The broker of a store, which in these tests could do without one."""
    assert not broker.broker.needs_store
    return cast(Carrier, broker.broker)


def window_of(broker: DatabaseBackend) -> Window:
    """The window of a store's timer, which these tests are about."""
    assert broker.broker.window is not None
    return broker.broker.window


def alarms(broker: DatabaseBackend) -> int:
    """Return how many alarms wait at the broker."""
    return sum(each.pending + each.ready for each in clock_of(broker).queue.counts().waiting)


def wait_until_due(broker: DatabaseBackend) -> None:
    """Until every alarm at the broker is due, in a moment."""
    while any(each.pending for each in clock_of(broker).queue.counts().waiting):
        broker.queue.wait(MOMENT_MS / 1000)


def clock_of_sends(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    """Let the waits of alarms be counted by this clock."""
    for module in ("enqueue", "queue"):
        monkeypatch.setattr(f"django_delayq.store.{module}.monotonic", clock)


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
    return site_with(delayq | {"DATABASE": "default"}, get_backend(), database_env, server.directory)
