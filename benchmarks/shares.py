"""Measure what fair shares cost, and how late a tenant is beside another one that has very many messages due."""

import os
import random
import time
from collections.abc import Callable
from functools import partial
from statistics import quantiles
from typing import Any
from unittest.mock import patch

from benchmarks.rates import in_turn
from benchmarks.records import count_records, read_records
from benchmarks.result import Result, at_least, at_most
from benchmarks.scale import scaled
from benchmarks.settings import ALONE, REDIS
from benchmarks.shared.delayed import shared, unshared
from benchmarks.site import DATA
from benchmarks.stored_drains import run_standing, seconds_of
from benchmarks.stored_rows import insert_spread
from benchmarks.stored_site import StoredSite, stored_site
from django_delayq import send_delay_messages
from django_delayq.api.handlers import Handler

APP = "benchmarks.shared"
SHOPS = 1_000
PER_S, LONGEST_DELAY_S = 20, 2.0
SPREADS: tuple[tuple[str, Callable[[int], int], float], ...] = (
    ("one share", lambda n: 0, 0.85),
    (f"{SHOPS:,} shares", lambda n: n % SHOPS, 0.7),
    ("100 shares, 90 % of one", lambda n: 0 if n % 10 else 1 + n // 10 % 99, 0.8),
)
"""The shops of messages, by their number, and the least ratios for handlers that do nothing."""
LEAST_OF_WRITERS = 0.95
"""The least ratio for handlers that do as little as real ones may: they write a row."""
BEFORE_MS = 3_600_000
"""The time for which the messages of the large tenant have been due."""


def run() -> list[Result]:
    """Return the ratios of messages a second with shares to those without, and the 99th percentiles of lateness."""
    results = []
    for writes, count, doing in (
        (True, scaled(30_000, least=1_000), " that write a row"),
        (False, scaled(50_000, least=1_000), ""),
    ):
        for of, shop_of, least in SPREADS:
            with_shares, without = (
                partial(_drain_s, handler, shop_of, count, writes=writes) for handler in (shared, unshared)
            )
            rates = in_turn(with_shares, without, count)
            what = f"draining {count:,}{doing} of {of} / without shares"
            results.append(at_least(what, rates.ratio, LEAST_OF_WRITERS if writes else least, str(rates)))
    many = scaled(1_000_000, least=1_000)  # more than run meanwhile
    for broker, where in ((REDIS, ""), (ALONE, ", PostgreSQL alone")):
        idle, beside = _p99_ms(broker, 0), _p99_ms(broker, many)
        results.append(
            at_most(
                f"lateness beside {many:,} due of another share, minus idle{where}: p99",
                beside - idle,
                100,
                "ms",
                f"{beside:.1f} ms beside, {idle:.1f} ms idle",
            )
        )
    return results


def _drain_s(handler: Handler[Any, Any], shop_of: Callable[[int], int], count: int, *, writes: bool) -> float:
    """Let a worker run messages. Return the seconds that it took."""
    with stored_site() as site:
        send_delay_messages(handler.prepare({**DATA, "shop": shop_of(n), "writes": writes}) for n in range(count))
        site.place()
        site.tidy()
        with patch.dict(os.environ, DELAYQ_BENCH_APP=APP):
            run_standing(site, count)
        return seconds_of(site, count)


def _p99_ms(broker: str, many: int) -> float:
    """Return how late messages of one share start while `many` of another are due."""
    with stored_site(broker) as site, patch.dict(os.environ, DELAYQ_BENCH_APP=APP):
        _insert_due(site, many)
        site.tidy()
        with site.worker() as running:
            running.wait_until_up()
            count = _send(scaled(8, least=2))
            running.wait_until(lambda: count_records(site.server) >= count, f"{count} messages have run")
            if many:
                _check_left(site)
        return quantiles([one.lateness_ms for one in read_records(site.server)], n=100)[98]


def _insert_due(site: StoredSite, many: int) -> None:
    with site.client() as client:
        insert_spread(client, shared.key, many, -BEFORE_MS, 1)
        client.execute("UPDATE delayq_ready SET share = 'shop:0'")


def _send(seconds: int) -> int:
    """Send messages of another share at a steady pace, and return how many."""
    delays, started = random.Random(1), time.monotonic()
    for number in range(seconds * PER_S):
        time.sleep(max(started + number / PER_S - time.monotonic(), 0))
        shared.send({**DATA, "shop": 1, "recorded": True}, delay=delays.uniform(0, LONGEST_DELAY_S))
    return seconds * PER_S


def _check_left(site: StoredSite) -> None:
    with site.client() as client:
        ((left,),) = client.execute("SELECT count(*) FROM delayq_ready").fetchall()
    if not left:
        raise RuntimeError("Nothing was due any more before the measurement was over.")
