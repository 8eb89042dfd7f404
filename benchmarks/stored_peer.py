"""Measure draining with a store, against a queue by hand: a table of jobs, read with the ORM and `SKIP LOCKED`."""

from collections.abc import Callable
from functools import partial
from time import perf_counter

from django.db import transaction
from django.utils import timezone

from benchmarks.models import Job
from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import DATA
from benchmarks.stored_drains import drain_s
from benchmarks.stored_site import StoredSite, stored_site


def run() -> list[Result]:
    """Return our messages a second, as ratios to a worker that commits each job, and to one that commits 100."""
    with stored_site() as site:
        results = [
            _against(site, 1, scaled(2_000, least=200), 15),
            _against(site, 100, scaled(50_000, least=1_000), 0.4),
        ]
    return results


def _against(site: StoredSite, at_once: int, peers_count: int, bound: float) -> Result:
    count = scaled(50_000, least=1_000)

    def ours() -> float:
        site.fill_due(count)
        return drain_s(site, count) / count

    rates = in_turn(ours, partial(_peer_s, site, peers_count, at_once), 1)
    rows = "1 row" if at_once == 1 else f"{at_once} rows"
    return at_least(f"draining with the store / an ORM worker, {rows} a transaction", rates.ratio, bound, str(rates))


def _peer_s(site: StoredSite, count: int, at_once: int) -> float:
    """Return the seconds that the hand-written queue takes for one job."""
    add_jobs(site, count)
    site.tidy()
    return run_jobs_s(site, at_once) / count


def add_jobs(site: StoredSite, count: int) -> None:
    """Insert `count` jobs that are due."""
    now = timezone.now()
    jobs = Job.objects.using(site.using)
    jobs.bulk_create((Job(key="bench.noop", data=DATA, due_at=now) for _ in range(count)), batch_size=1_000)


def run_jobs_s(site: StoredSite, at_once: int) -> float:
    """Run all due jobs. Return the seconds that it took."""
    handlers: dict[str, Callable[[object], None]] = {"bench.noop": lambda data: None}
    started = perf_counter()
    while _run_some(site.using, at_once, handlers):
        pass
    return perf_counter() - started


def _run_some(using: str, at_once: int, handlers: dict[str, Callable[[object], None]]) -> bool:
    with transaction.atomic(using=using):
        due = Job.objects.using(using).filter(due_at__lte=timezone.now()).order_by("due_at")
        found = list(due.select_for_update(skip_locked=True)[:at_once])
        for job in found:
            handlers[job.key](job.data)
        Job.objects.using(using).filter(pk__in=[job.pk for job in found]).delete()
    return bool(found)
