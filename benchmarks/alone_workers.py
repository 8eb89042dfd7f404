"""Measure whether workers that share one table of PostgreSQL alone do each other's work: 8 of them against one.

It counts statements and locked rows for each message, because these do not depend on the load. If one row is locked for
each message, no worker locks rows in vain.
"""

from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

from benchmarks.rates import ROUNDS
from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.site import fill
from benchmarks.spent import statements
from benchmarks.stored_drains import wait_until_ended
from benchmarks.stored_rows import insert_spread
from benchmarks.stored_site import StoredSite, counted_alone

WORKERS = 8
PER_S = 500
BOUND = 1.3

Each = tuple[float, float]
"""Statements and locked rows for each message."""


def run() -> list[Result]:
    """Return the ratios of costs for a backlog, and for messages that fall due one after the other."""
    return [
        *_ratios("of a backlog", _send_backlog, scaled(50_000, least=1_000)),
        *_ratios(f"of {PER_S}/s", _send_steadily, PER_S * scaled(20, least=5)),
    ]


def _ratios(what: str, send: Callable[[StoredSite, int], None], count: int) -> list[Result]:
    rounds = [(_round(send, count, WORKERS), _round(send, count, 1)) for _ in range(ROUNDS)]
    return [
        at_most(
            f"{unit} for each message {what}, {WORKERS} workers / 1",
            median(many[n] / one[n] for many, one in rounds),
            BOUND,
            "times",
            f"{median(many[n] for many, _ in rounds):.3f} / {median(one[n] for _, one in rounds):.3f}",
        )
        for n, unit in enumerate(("statements", "rows locked"))
    ]


def _round(send: Callable[[StoredSite, int], None], count: int, workers: int) -> Each:
    with counted_alone() as site, site.client() as client, ExitStack() as running:
        started = [running.enter_context(site.worker()) for _ in range(workers)]
        started[0].wait_until_up(workers)
        calls, locked = statements(client)
        send(site, count)
        wait_until_ended(client, started[0], count)
        now = statements(client)
        return (now[0] - calls) / count, (now[1] - locked) / count


def _send_backlog(site: StoredSite, count: int) -> None:
    fill(count)


def _send_steadily(site: StoredSite, count: int) -> None:
    with site.client() as client:
        insert_spread(client, "bench.noop", count, 3_000, 1000 / PER_S)
