"""Measure draining under limits that are never reached, against draining without limits."""

import os
from functools import partial
from typing import Any
from unittest.mock import patch

from benchmarks.drains import drain_s
from benchmarks.limits.delayed import (
    limited,
    limited_and_rated_by_order,
    limited_by_order,
    rated,
    rated_briefly_by_order,
    rated_by_order,
    rated_evenly_by_number,
    unlimited,
)
from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import DATA, site
from benchmarks.stored_drains import run_standing, seconds_of
from benchmarks.stored_site import stored_site
from django_delayq import send_delay_messages
from django_delayq.api.handlers import Handler

APP = "benchmarks.limits"
ORDERS = 1_000
"""How many orders the messages are about."""
LEAST = 0.95
"""The least ratio for handlers that do as little as real ones may: they write a row. Others do nothing."""

LIMITS = {
    "max_concurrency": (limited, LEAST, 0.4, 0.5),
    "rate_limit and burst": (rated, LEAST, 0.5, 0.4),
    f"concurrency_key, {ORDERS:,} values": (limited_by_order, LEAST, 0.15, 0.25),
    f"rate_key, {ORDERS:,} values": (rated_by_order, LEAST, 0.2, 0.25),
    f"concurrency_key and rate_key, {ORDERS:,} values": (limited_and_rated_by_order, 0.85, 0.15, 0.2),
    f"rate_key, {ORDERS:,} values, bursts of 0.2 s": (rated_briefly_by_order, 0.8, 0.2, 0.25),
    "rate_key, a value for each message, no burst": (rated_evenly_by_number, 0.65, 0.2, 0.25),
}
"""The handlers, and their least ratios: if they write a row, with a store, and with Redis alone.

Of the last two, each message writes a row of its limit, too.
"""


def run() -> list[Result]:
    """Return the ratios of messages a second with a limit to messages a second without."""
    results = []
    for name, (handler, of_writers, of_store, of_redis) in LIMITS.items():
        for seconds, most, where, least in (
            (_written_s, 30_000, " that write a row", of_writers),
            (_stored_s, 50_000, "", of_store),
            (_alone_s, 50_000, ", Redis alone", of_redis),
        ):
            count = scaled(most, least=1_000)
            rates = in_turn(partial(seconds, handler, count), partial(seconds, unlimited, count), count)
            what = f"draining {count:,}{where} with {name} / without"
            results.append(at_least(what, rates.ratio, least, str(rates)))
    return results


def _send(handler: Handler[Any, Any], count: int, *, writes: bool = False) -> None:
    send_delay_messages(
        handler.prepare({**DATA, "order": n % ORDERS, "number": n, "writes": writes}) for n in range(count)
    )


def _written_s(handler: Handler[Any, Any], count: int) -> float:
    """Let a worker run messages of a store whose handlers write a row. Return the seconds that it took."""
    return _stored_s(handler, count, writes=True)


def _stored_s(handler: Handler[Any, Any], count: int, *, writes: bool = False) -> float:
    """Let a worker run messages of a store. Return the seconds that it took."""
    with stored_site() as stored:
        _send(handler, count, writes=writes)
        with patch.dict(os.environ, DELAYQ_BENCH_APP=APP):
            run_standing(stored, count)
        return seconds_of(stored, count)


def _alone_s(handler: Handler[Any, Any], count: int) -> float:
    """Do the same with messages in Redis."""
    with site() as server:
        _send(handler, count)
        with patch.dict(os.environ, DELAYQ_BENCH_APP=APP):
            return drain_s(server, count)
