"""Measure draining rows that have alarms, against a raw loop of the same claims, deletes and inserts."""

from time import time_ns

import psycopg

from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.stored_drains import drain_s
from benchmarks.stored_rows import BATCH, drain, insert
from benchmarks.stored_site import StoredSite, stored_site


def run() -> list[Result]:
    """Return our messages a second as a ratio to the floor's."""
    count = scaled(50_000, least=1_000)
    with stored_site() as site, site.client() as client:

        def ours() -> float:
            site.fill_due(count)
            return drain_s(site, count)

        rates = in_turn(ours, lambda: _floor_s(site, client, count), count)
    what = f"draining {count:,} with the store / raw claim, delete and insert of {BATCH}"
    return [at_least(what, rates.ratio, 0.4, str(rates))]


def _floor_s(site: StoredSite, client: psycopg.Connection, count: int) -> float:
    client.execute("TRUNCATE delayq_finish")
    due_ms = time_ns() // 1_000_000
    insert(client, [f"floor-message-{number:08}" for number in range(count)], due_ms, 1_000)
    site.tidy()
    return drain(client, due_ms)
