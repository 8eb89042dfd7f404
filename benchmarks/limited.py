"""Measure draining under limits that are never reached, against draining without limits."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

from benchmarks.limits.delayed import limited, limited_by_order
from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import DATA, noops
from benchmarks.stored_drains import run_standing, seconds_of
from benchmarks.stored_site import stored_site
from django_delayq import Send, send_delay_messages

APP = "benchmarks.limits"
ORDERS = 1_000
"""How many orders the messages are about."""


def run() -> list[Result]:
    """Return the ratios of messages a second with a limit to messages a second without."""
    count = scaled(10_000, least=1_000)
    plain = partial(_seconds, noops, "", count)
    of_all = in_turn(partial(_seconds, _limited, APP, count), plain, count)
    of_each = in_turn(partial(_seconds, _limited_by_order, APP, count), plain, count)
    return [
        at_least(f"draining {count:,} with max_concurrency / without", of_all.ratio, 0.2, str(of_all)),
        at_least(
            f"draining {count:,} of {ORDERS:,} orders with concurrency_key / without", of_each.ratio, 0.08, str(of_each)
        ),
    ]


def _limited(count: int) -> Iterator[Send]:
    return (limited.prepare(DATA) for _ in range(count))


def _limited_by_order(count: int) -> Iterator[Send]:
    return (limited_by_order.prepare({**DATA, "order": n % ORDERS}) for n in range(count))


def _seconds(messages: Callable[[int], Iterator[Send]], app: str, count: int) -> float:
    """Let a worker that knows the handlers of `app` too run messages. Return the seconds that it took."""
    with stored_site() as site:
        send_delay_messages(messages(count))
        with patch.dict(os.environ, DELAYQ_BENCH_APP=app):
            run_standing(site, count)
        return seconds_of(site, count)
