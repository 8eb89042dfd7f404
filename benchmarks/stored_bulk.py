"""Measure sending in bulk with a store, against psycopg's `executemany` of the same rows, 1,000 a transaction."""

from time import perf_counter

from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import fill
from benchmarks.stored_rows import insert
from benchmarks.stored_site import stored_site
from django_delayq.brokers.base import BATCH

SLICE = 20_000
FAR_MS = 1_900_000_000_000


def run() -> list[Result]:
    """Return our messages a second as a ratio to the floor's."""
    with stored_site() as site, site.client() as client:
        numbers = iter(range(10**8))

        def floor() -> float:
            return insert(client, [f"floor-message-{next(numbers):08}" for _ in range(SLICE)], FAR_MS, BATCH)

        _ours_s()
        floor()
        rates = in_turn(_ours_s, floor, SLICE, turns=scaled(2))
    return [at_least("send_delay_messages with the store / raw psycopg executemany", rates.ratio, 0.5, str(rates))]


def _ours_s() -> float:
    started = perf_counter()
    fill(SLICE, delay="7d")
    return perf_counter() - started
