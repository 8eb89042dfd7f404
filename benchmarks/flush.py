"""Measure how soon messages start on time again after Redis lost all data, while very many rows wait or fall due."""

import time
from collections import Counter
from collections.abc import Callable
from statistics import median

from benchmarks.rates import ROUNDS
from benchmarks.records import Record, count_records, read_records
from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.server import Server
from benchmarks.stored_rows import insert_spread, insert_waiting
from benchmarks.stored_site import StoredSite, stored_site
from benchmarks.worker import Worker

PER_S = 2_000
FIRST_S, SPAN_S, LOSS_S = 14, 10, 17
"""The first message is due after `FIRST_S`, beyond the window, the last `SPAN_S` later. Redis loses all in between."""
ON_TIME_MS = 500
"""A message that starts later than this, at this pace, has waited for a lost alarm.

A busy machine alone seldom makes a message so late.
"""


def run() -> list[Result]:
    """Return the median seconds until the last late start, and how many messages ran early, never or twice."""
    waiting = scaled(1_000_000, least=1_000)
    with stored_site() as site, site.client() as client, site.worker() as running:
        insert_waiting(client, waiting)
        running.wait_until_up()
        rounds = {
            what: [_round(site, running, loss) for _ in range(ROUNDS)]
            for what, loss in (("FLUSHALL", _flush), ("Redis restarted empty", _restart))
        }
    late = [
        at_most(f"{what} with {waiting:,} waiting, {PER_S:,}/s due: until all are on time again", *_late(after))
        for what, after in rounds.items()
    ]
    runs = [run for each in rounds.values() for _, records in each for run in records]
    not_once = sum(count != 1 for count in Counter(run.id for run in runs).values())
    return [
        *late,
        at_most(f"early, of {len(runs):,}", sum(run.lateness_ms < 0 for run in runs), 0, "messages"),
        at_most("not run exactly once", not_once, 0, "messages"),
    ]


def _late(after: list[tuple[float, list[Record]]]) -> tuple[float, float, str, str]:
    each = [seconds for seconds, _ in after]
    latest_ms = max(run.lateness_ms for _, records in after for run in records)
    return median(each), 2, "s", f"{', '.join(f'{seconds:.2f}' for seconds in each)}; at most {latest_ms:.0f} ms late"


def _round(site: StoredSite, running: Worker, loss: Callable[[Server], None]) -> tuple[float, list[Record]]:
    """Return the seconds from the loss to the last start that was late, and all starts."""
    before = count_records(site.server)
    began = time.monotonic()
    with site.client() as client:
        insert_spread(client, "bench.record", PER_S * SPAN_S, FIRST_S * 1000, 1000 / PER_S)
    time.sleep(max(began + LOSS_S - time.monotonic(), 0))
    lost_ms = time.time_ns() / 1e6
    loss(site.server)
    time.sleep(max(began + FIRST_S + SPAN_S - time.monotonic(), 0))
    running.wait_until(lambda: count_records(site.server) >= before + PER_S * SPAN_S, "all have run")
    records = read_records(site.server)[before:]
    late_ms = [run.ran_ms for run in records if run.lateness_ms > ON_TIME_MS and run.ran_ms > lost_ms]
    return (max(late_ms, default=lost_ms) - lost_ms) / 1000, records


def _flush(server: Server) -> None:
    with server.client() as client:
        client.flushall()


def _restart(server: Server) -> None:
    server.kill()
    server.start()
