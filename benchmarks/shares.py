"""Measure what fair shares cost, and how late a tenant is beside another one that has very many messages due."""

import os
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import quantiles
from unittest.mock import patch

from benchmarks.rates import in_turn
from benchmarks.records import count_records, read_records
from benchmarks.result import Result, at_least, at_most
from benchmarks.scale import scaled
from benchmarks.settings import ALONE, REDIS
from benchmarks.shared.delayed import shared
from benchmarks.site import DATA, noops
from benchmarks.stored_drains import run_standing, seconds_of
from benchmarks.stored_rows import insert_spread
from benchmarks.stored_site import StoredSite, stored_site
from django_delayq import Send, send_delay_messages

APP = "benchmarks.shared"
SHOPS = 1_000
PER_S, LONGEST_DELAY_S = 20, 2.0
BEFORE_MS = 3_600_000
"""The time for which the messages of the large tenant have been due."""


def run() -> list[Result]:
    """Return the ratios of messages a second with shares to those without, and the 99th percentiles of lateness."""
    count = scaled(50_000, least=1_000)
    results = []
    for of, shop_of in (
        ("one share", lambda n: 0),
        (f"{SHOPS:,} shares", lambda n: n % SHOPS),
        ("100 shares, 90 % of one", lambda n: 0 if n % 10 else 1 + n // 10 % 99),
    ):
        rates = in_turn(partial(_drain_s, partial(_of, shop_of), count), partial(_drain_s, noops, count), count)
        results.append(at_least(f"draining {count:,} of {of} / without shares", rates.ratio, 0.95, str(rates)))
    many = scaled(300_000, least=1_000)  # more than run meanwhile
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


def _of(shop_of: Callable[[int], int], count: int) -> Iterator[Send]:
    return (shared.prepare({**DATA, "shop": shop_of(n)}) for n in range(count))


def _drain_s(messages: Callable[[int], Iterator[Send]], count: int) -> float:
    """Let a worker run messages. Return the seconds that it took."""
    with stored_site() as site:
        send_delay_messages(messages(count))
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
