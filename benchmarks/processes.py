"""Measure two worker processes against one: with handlers that do nothing, and with some that burn the processor.

The workers are up before anything is due, so that the time that they take to start does not count.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from benchmarks.delayed import burn, noop
from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import DATA, KEYS, site
from benchmarks.stored_site import stored_site
from benchmarks.until import POLL_S
from benchmarks.worker import Worker, worker
from django_delayq import send_delay_messages
from django_delayq.api.handlers import Handler
from django_delayq.brokers import get_backend

TWO = ("--processes", "2")
CORES = 4
"""With fewer, one process and the servers leave nothing for a second one: no-ops then have no bound."""
LONGEST_S = 600
SENT_PER_S = 4_000
"""The least messages a second that even a busy machine sends. All must be sent before the first is due."""
COUNT_EVERY_S = 0.1
"""How often rows are counted. Counting 60,000 takes some milliseconds of a processor that the workers need."""

Up = Callable[..., AbstractContextManager[tuple[Worker, Callable[[], int]]]]
"""A context manager: runs workers with these options, and yields one, and a function that counts finished messages."""


def run() -> list[Result]:
    """Return the ratios of messages a second: on Redis alone, and with a store."""
    results = []
    with site() as server, server.client() as client:

        @contextmanager
        def up(*options: str) -> Iterator[tuple[Worker, Callable[[], int]]]:
            with worker(server, *options) as running:
                yield running, lambda: int(client.hget(KEYS.count, "finished") or 0)

        results += _ratios("on Redis", up, POLL_S)
    with stored_site() as stored, stored.client() as database:
        database.execute("SET max_parallel_workers_per_gather = 0")

        @contextmanager
        def stored_up(*options: str) -> Iterator[tuple[Worker, Callable[[], int]]]:
            database.execute("TRUNCATE delayq_finish")
            with stored.worker(*options) as running:
                yield running, lambda: database.execute("SELECT count(*) FROM delayq_finish").fetchall()[0][0]

        results += _ratios("with the store", stored_up, COUNT_EVERY_S)
    return results


def _ratios(where: str, up: Up, count_every_s: float) -> list[Result]:
    seconds = partial(_seconds, up, count_every_s)

    def ratio(handler: Handler[Any, Any], count: int, what: str, least: float) -> Result:
        rates = in_turn(lambda: seconds(handler, count, *TWO), lambda: seconds(handler, count), count)
        return at_least(f"{count:,} {what} {where}, --processes 2 / one", rates.ratio, least, str(rates))

    return [
        ratio(
            noop, scaled(60_000, least=1_000), "that do nothing", 1.6 if len(os.sched_getaffinity(0)) >= CORES else 0
        ),
        ratio(burn, scaled(6_000, least=1_000), "that burn 1 ms", 1.9),
    ]


def _seconds(up: Up, count_every_s: float, handler: Handler[Any, Any], count: int, *options: str) -> float:
    """Let workers run messages that are all due at once. Return the seconds from then to the last finish."""
    old = _names()  # killed workers are known for a while
    with up(*options) as (running, count_finished):
        workers = 2 if options else 1
        running.wait_until(lambda: len(_names() - old) >= workers, f"{workers} worker(s) are up")
        before = count_finished()
        due_in_s = 2 + count / SENT_PER_S
        due_at = datetime.now(UTC) + timedelta(seconds=due_in_s)
        due = time.monotonic() + due_in_s
        send_delay_messages(handler.prepare(DATA, at=due_at) for _ in range(count))
        if time.monotonic() > due:
            raise RuntimeError("The machine is too busy: some messages were due before the last was sent.")
        time.sleep(max(due - time.monotonic(), 0))
        ended = running.wait_until(
            lambda: count_finished() >= before + count, f"{count} finish", LONGEST_S, count_every_s
        )
    return ended - due


def _names() -> set[str]:
    return {info.name for info in get_backend().presence.workers()}
