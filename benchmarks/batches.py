"""Measure draining in batches of 500, against draining one by one, with handlers that do nothing."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

from benchmarks.batched.delayed import batched
from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import DATA, noops
from benchmarks.stored_drains import drain_s
from benchmarks.stored_site import stored_site
from django_delayq import Send, send_delay_messages

APP = "benchmarks.batched"


def run() -> list[Result]:
    """Return the ratio of messages a second in batches to messages a second one by one."""
    count = scaled(50_000, least=1_000)
    rates = in_turn(partial(_seconds, _batched, APP, count), partial(_seconds, noops, "", count), count)
    return [at_least(f"draining {count:,} in batches of 500 / one by one", rates.ratio, 0.9, str(rates))]


def _batched(count: int) -> Iterator[Send]:
    return (batched.prepare(DATA) for _ in range(count))


def _seconds(messages: Callable[[int], Iterator[Send]], app: str, count: int) -> float:
    """Let a worker that knows the handlers of `app` too drain messages. Return the seconds that it took."""
    with stored_site() as site:
        send_delay_messages(messages(count))
        with patch.dict(os.environ, DELAYQ_BENCH_APP=app):
            return drain_s(site, count)
