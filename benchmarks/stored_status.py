"""Measure `delayq status` while many messages fall due in the hours that it forecasts, against the same with few."""

from collections.abc import Callable
from io import StringIO
from time import perf_counter

from django.core.management import call_command

from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.stored_rows import insert_spread
from benchmarks.stored_site import StoredSite, stored_server
from benchmarks.stored_waiting import FEW

AFTER_MS = 60_000
SPAN_MS = 11 * 3_600_000


def run() -> list[Result]:
    """Return the ratio of calls a second."""
    many = scaled(1_000_000, least=2 * FEW)
    with stored_server() as crowded, stored_server() as calm:
        for site, count in (crowded, many), (calm, FEW):
            with site.client() as client:
                insert_spread(client, "bench.noop", count, AFTER_MS, SPAN_MS / count)
            site.tidy()
        rates = in_turn(lambda: seconds(crowded, status), lambda: seconds(calm, status), 1, scaled(20))
    what = f"delayq status with {many:,} rows due in the next hours / with {FEW:,}"
    return [at_least(what, rates.ratio, 0.9, str(rates))]


def seconds(site: StoredSite, work: Callable[[], None]) -> float:
    """Do some work at a site, and return the seconds that it took."""
    with site.sending():
        started = perf_counter()
        work()
        return perf_counter() - started


def status() -> None:
    """Run the command."""
    call_command("delayq", "status", stdout=StringIO())
