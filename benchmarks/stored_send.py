"""Measure sending with a store, outside a transaction, against the ORM: one message at a time, and 500 at a time.

The messages wait for an hour, so that no alarm is set at once. The ORM's table has one index, and keeps no promises.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from django.db import connections
from django.utils import timezone

from benchmarks.delayed import noop
from benchmarks.models import Job
from benchmarks.rates import Rates, in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import DATA, fill
from benchmarks.stored_site import StoredSite, stored_site

SLICE = 100
AT_ONCE = 500
CALLS = 10
DELAY_S = 3600


def run() -> list[Result]:
    """Return the ratios of messages a second to inserts a second."""
    with stored_site() as site:
        one = _rates(send, lambda: _create(site), SLICE, scaled(20))
        many = _rates(_send_many, lambda: _create_many(site), CALLS * AT_ONCE, scaled(4))
        with _prepared(site):
            prepared = _rates(send, lambda: _create(site), SLICE, scaled(20))
    what = f"send_delay_messages with the store / bulk_create() of the ORM, {AT_ONCE} at a time"
    return [
        at_least("one-at-a-time send with the store / objects.create() of the ORM", one.ratio, 0.9, str(one)),
        at_least("the same, both with prepared statements", prepared.ratio, 0.9, str(prepared)),
        at_least(what, many.ratio, 1.5, str(many)),
    ]


@contextmanager
def _prepared(site: StoredSite) -> Iterator[None]:
    """Have PostgreSQL keep the plans of the statements that this process repeats, for the block."""
    connection = connections[site.using]
    options = connection.settings_dict["OPTIONS"]
    connection.settings_dict["OPTIONS"] = {"server_side_binding": True, "prepare_threshold": 5}
    connection.close()
    yield
    connection.settings_dict["OPTIONS"] = options
    connection.close()


def _rates(ours: Callable[[], None], peer: Callable[[], None], items: int, turns: int) -> Rates:
    ours()
    peer()
    return in_turn(lambda: _seconds(ours), lambda: _seconds(peer), items, turns)


def _seconds(work: Callable[[], None]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


def send() -> None:
    """Send some messages, one at a time."""
    for _ in range(SLICE):
        noop.send(DATA, delay=DELAY_S)


def _create(site: StoredSite) -> None:
    jobs = Job.objects.using(site.using)
    for _ in range(SLICE):
        jobs.create(key=noop.key, data=DATA, due_at=timezone.now())


def _send_many() -> None:
    for _ in range(CALLS):
        fill(AT_ONCE, delay=DELAY_S)


def _create_many(site: StoredSite) -> None:
    jobs = Job.objects.using(site.using)
    for _ in range(CALLS):
        jobs.bulk_create(Job(key=noop.key, data=DATA, due_at=timezone.now()) for _ in range(AT_ONCE))
