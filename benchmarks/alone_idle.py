"""Measure the cost of a worker that has nothing to do, on PostgreSQL alone."""

import time
from statistics import median

import psycopg

from benchmarks.idle import ROUND_S, SETTLING_S
from benchmarks.rates import ROUNDS
from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.site import fill
from benchmarks.spent import cpu_s, statements
from benchmarks.stored_site import counted_alone


def run() -> list[Result]:
    """Return the worker's statements a second, and its share of a core."""
    with counted_alone() as site, site.client() as client, site.worker() as running:
        fill(1_000, delay="1d")
        running.wait_until_up()
        time.sleep(SETTLING_S)
        rounds = [_round(client, running.pid, scaled(ROUND_S, least=5)) for _ in range(ROUNDS)]
    a_second, percent = (median(figures) for figures in zip(*rounds, strict=True))
    return [
        at_most("an idle worker, PostgreSQL alone: statements", a_second, 1, "a second"),
        at_most("an idle worker, PostgreSQL alone: processor", percent, 0.5, "% of a core"),
    ]


def _round(client: psycopg.Connection, pid: int, seconds: float) -> tuple[float, float]:
    before, busy_s, started = statements(client)[0], cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - started
    return (statements(client)[0] - before) / elapsed, 100 * (cpu_s(pid) - busy_s) / elapsed
