"""What the tests of the store share."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from django_delayq.brokers import get_broker
from django_delayq.brokers.base import Claimed, Want
from django_delayq.store import StoredBroker
from tests.servers.process import PrivateServer
from tests.worker.processes import Line, Site

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


@contextmanager
def site_on(delayq: dict[str, Any], database_env: dict[str, str], server: PrivateServer) -> Iterator[Site]:
    """A site with that store, whose workers run on it, and whose handlers call from beside the server."""
    path = server.directory / "store-line.sock"
    path.unlink(missing_ok=True)
    line = Line(path)
    env = database_env | {
        "DJANGO_SETTINGS_MODULE": "tests.worker.settings",
        "DELAYQ_TEST": json.dumps(delayq | {"DATABASE": "default"}),
        "DELAYQ_TEST_LINE": str(line.path),
    }
    site = Site(get_broker(), env, line)
    yield site
    site.close()
    line.close()
    path.unlink()
