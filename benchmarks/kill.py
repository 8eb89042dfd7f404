"""Measure how long the messages of a killed worker wait, with the default lease and a new worker at once."""

import time
from collections import Counter
from statistics import median

from benchmarks.delayed import hold
from benchmarks.rates import ROUNDS
from benchmarks.records import read_records
from benchmarks.result import Result, at_most
from benchmarks.site import site
from benchmarks.worker import worker
from django_delayq.brokers import get_backend

RUNNING = 4
HOLD_S = 600.0


def run() -> list[Result]:
    """Return the seconds until all messages run again, and how many did not run again exactly once."""
    rounds = [_round() for _ in range(ROUNDS)]
    seconds, not_once = zip(*rounds, strict=True)
    return [
        at_most(f"SIGKILL with {RUNNING} running: until all run again", median(seconds), 16, "s"),
        at_most("not run again exactly once", sum(not_once), 0, "messages"),
    ]


def _round() -> tuple[float, int]:
    with site() as server:
        with worker(server, hold_s=HOLD_S) as first:
            first.wait_until_up()
            for _ in range(RUNNING):
                hold.send()
            first.wait_until(lambda: len(read_records(server)) == RUNNING, f"{RUNNING} messages run")
            first.kill()
            killed = time.monotonic()
        with worker(server) as second:
            again = second.wait_until(lambda: len(read_records(server)) >= 2 * RUNNING, "all run again")
            second.wait_until(lambda: get_backend().queue.counts().totals["finished"] == RUNNING, "all are finished")
        runs = Counter(record.id for record in read_records(server))
        return again - killed, sum(count != 2 for count in runs.values())
