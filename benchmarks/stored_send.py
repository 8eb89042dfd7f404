"""Sending one message at a time with a store, outside a transaction, against `objects.create()` of the ORM.

The message waits for an hour, so that no alarm is put at once. The peer's table has one index, and no promises.
"""

from time import perf_counter

from django.utils import timezone

from benchmarks.delayed import noop
from benchmarks.models import Job
from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import DATA
from benchmarks.stored_site import StoredSite, stored_site

SLICE = 100


def run() -> list[Result]:
    """The ratio of sends to inserts."""
    with stored_site() as site:
        _ours_s()
        _peer_s(site)
        rates = in_turn(_ours_s, lambda: _peer_s(site), SLICE, turns=scaled(2_000 // SLICE))
    return [at_least("one-at-a-time send with the store / objects.create() of the ORM", rates.ratio, 0.5, str(rates))]


def _ours_s() -> float:
    started = perf_counter()
    for _ in range(SLICE):
        noop.send(DATA, delay=3600)
    return perf_counter() - started


def _peer_s(site: StoredSite) -> float:
    jobs = Job.objects.using(site.using)
    started = perf_counter()
    for _ in range(SLICE):
        jobs.create(key=noop.key, data=DATA, due_at=timezone.now())
    return perf_counter() - started
