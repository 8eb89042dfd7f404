"""Measure draining under limits that are never reached, against draining without limits."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

from benchmarks.drains import drain_s
from benchmarks.limits.delayed import limited, limited_by_order, rated, rated_by_order
from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import DATA, noops, site
from benchmarks.stored_drains import run_standing, seconds_of
from benchmarks.stored_site import stored_site
from django_delayq import Send, send_delay_messages
from django_delayq.api.handlers import Handler

APP = "benchmarks.limits"
ORDERS = 1_000
"""How many orders the messages are about."""

Messages = Callable[[int], Iterator[Send]]

LIMITS = {
    "max_concurrency": (limited, 0.2, 0.2),
    "rate_limit and burst": (rated, 0.2, 0.2),
    f"concurrency_key, {ORDERS:,} values": (limited_by_order, 0.08, 0.08),
    f"rate_key, {ORDERS:,} values": (rated_by_order, 0.08, 0.08),
}
"""The handlers, and their least ratios with a store and with Redis alone."""


def run() -> list[Result]:
    """Return the ratios of messages a second with a limit to messages a second without."""
    count = scaled(10_000, least=1_000)
    results = []
    for name, (handler, of_store, of_redis) in LIMITS.items():
        messages = partial(_messages, handler)
        for seconds, where, least in ((_stored_s, "", of_store), (_alone_s, ", Redis alone", of_redis)):
            rates = in_turn(partial(seconds, messages, APP, count), partial(seconds, noops, "", count), count)
            results.append(at_least(f"draining {count:,} with {name}{where} / without", rates.ratio, least, str(rates)))
    return results


def _messages(handler: Handler[Any, Any], count: int) -> Iterator[Send]:
    return (handler.prepare({**DATA, "order": n % ORDERS}) for n in range(count))


def _stored_s(messages: Messages, app: str, count: int) -> float:
    """Let a worker that knows the handlers of `app` too run messages of a store. Return the seconds that it took."""
    with stored_site() as stored:
        send_delay_messages(messages(count))
        with patch.dict(os.environ, DELAYQ_BENCH_APP=app):
            run_standing(stored, count)
        return seconds_of(stored, count)


def _alone_s(messages: Messages, app: str, count: int) -> float:
    """Do the same with messages in Redis."""
    with site() as server:
        send_delay_messages(messages(count))
        with patch.dict(os.environ, DELAYQ_BENCH_APP=app):
            return drain_s(server, count)
