"""Measure draining under limits that are never reached, against draining without limits."""

import os
from functools import partial
from typing import Any
from unittest.mock import patch

from benchmarks.drains import drain_s
from benchmarks.limits.delayed import limited, limited_by_order, rated, rated_by_order, unlimited
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
SLEEP_S, SLOTS = 0.001, 16
"""The time for which the handlers sleep that do something, and the number of them that run at once."""

LIMITS = {
    "max_concurrency": (limited, 0.4, 0.5),
    "rate_limit and burst": (rated, 0.5, 0.4),
    f"concurrency_key, {ORDERS:,} values": (limited_by_order, 0.15, 0.25),
    f"rate_key, {ORDERS:,} values": (rated_by_order, 0.2, 0.25),
}
"""The handlers, and their least ratios with a store and with Redis alone."""


def run() -> list[Result]:
    """Return the ratios of messages a second with a limit to messages a second without."""
    count = scaled(10_000, least=1_000)
    results = []
    for sleep_s, options, doing in ((0.0, (), ""), (SLEEP_S, ("--threads", str(SLOTS)), " that sleep for 1 ms")):
        for name, (handler, of_store, of_redis) in LIMITS.items():
            places = [(_stored_s, "", of_store), (_alone_s, ", Redis alone", of_redis)]
            for seconds, where, least in places[:1] if sleep_s else places:
                with_limit, without = (partial(seconds, one, sleep_s, count, *options) for one in (handler, unlimited))
                rates = in_turn(with_limit, without, count)
                what = f"draining {count:,}{doing} with {name}{where} / without"
                results.append(at_least(what, rates.ratio, least, str(rates)))
    return results


def _send(handler: Handler[Any, Any], sleep_s: float, count: int) -> None:
    send_delay_messages(handler.prepare({**DATA, "order": n % ORDERS, "sleep_s": sleep_s}) for n in range(count))


def _stored_s(handler: Handler[Any, Any], sleep_s: float, count: int, *options: str) -> float:
    """Let a worker run messages of a store. Return the seconds that it took."""
    with stored_site() as stored:
        _send(handler, sleep_s, count)
        with patch.dict(os.environ, DELAYQ_BENCH_APP=APP):
            run_standing(stored, count, *options)
        return seconds_of(stored, count)


def _alone_s(handler: Handler[Any, Any], sleep_s: float, count: int, *options: str) -> float:
    """Do the same with messages in Redis."""
    with site() as server:
        _send(handler, sleep_s, count)
        with patch.dict(os.environ, DELAYQ_BENCH_APP=APP):
            return drain_s(server, count, *options)
