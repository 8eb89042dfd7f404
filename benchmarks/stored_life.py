"""Measure how much WAL PostgreSQL writes for a message that is sent in bulk, claimed by a worker and finished."""

from statistics import median

import psycopg

from benchmarks.rates import ROUNDS
from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.site import fill
from benchmarks.stored_drains import wait_until_ended
from benchmarks.stored_site import stored_site

FIRST = 200
"""How many messages run before the measurement, because the first ones also write to new pages."""
WRITTEN = "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"


def run() -> list[Result]:
    """Return the bytes for each message, without images of whole pages, whose number depends on the checkpoints."""
    count = scaled(10_000, least=1_000)
    what = f"WAL of one message's life, of {count:,} sent in bulk and run by a worker"
    return [at_most(what, median(_bytes_of_each(count) for _ in range(ROUNDS)), 1_600, "bytes")]


def _bytes_of_each(count: int) -> float:
    with stored_site() as site, site.client() as client:
        client.autocommit = True
        client.execute("ALTER SYSTEM SET full_page_writes = off")
        client.execute("SELECT pg_reload_conf()")
        with site.worker() as running:
            running.wait_until_up()
            fill(FIRST)
            wait_until_ended(client, running, FIRST)
            client.execute("CHECKPOINT")
            before = _written(client)
            fill(count)
            wait_until_ended(client, running, FIRST + count)
            return (_written(client) - before) / count


def _written(client: psycopg.Connection) -> float:
    ((written,),) = client.execute(WRITTEN).fetchall()
    return float(written)
