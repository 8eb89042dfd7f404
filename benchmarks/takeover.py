"""Measure how long messages of a killed worker wait if a new one starts at once on the same host, with a store."""

import time
from collections import Counter
from statistics import median

from benchmarks.delayed import hold
from benchmarks.kill import HOLD_S, RUNNING
from benchmarks.rates import ROUNDS
from benchmarks.records import read_records
from benchmarks.result import Result, at_most
from benchmarks.stored_site import stored_site
from django_delayq.brokers import get_backend


def run() -> list[Result]:
    """Return the seconds from the kill until all run again, and how many did not run again exactly once."""
    rounds = [_round() for _ in range(ROUNDS)]
    seconds, not_once = zip(*rounds, strict=True)
    what = f"SIGKILL of the only worker with {RUNNING} running, restarted on the same host: until all run again"
    return [
        at_most(what, median(seconds), 1, "s"),
        at_most("not run again exactly once", sum(not_once), 0, "messages"),
    ]


def _round() -> tuple[float, int]:
    with stored_site() as site:
        with site.worker(hold_s=HOLD_S) as first:
            first.wait_until_up()
            for _ in range(RUNNING):
                hold.send()
            first.wait_until(lambda: len(read_records(site.server)) == RUNNING, f"{RUNNING} messages run")
            first.kill()
            killed = time.monotonic()
        with site.worker() as second:
            again = second.wait_until(lambda: len(read_records(site.server)) >= 2 * RUNNING, "all run again")
            second.wait_until(lambda: get_backend().queue.counts().running == 0, "all are finished")
        runs = Counter(record.id for record in read_records(site.server))
        return again - killed, sum(count != 2 for count in runs.values())
