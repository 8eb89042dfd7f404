"""Measure how late handlers start while messages come in at a steady pace and the worker has nothing else to do."""

import random
import time
from statistics import median, quantiles

from benchmarks.delayed import record
from benchmarks.rates import ROUNDS
from benchmarks.records import Record, count_records, read_records
from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.server import AnyServer
from benchmarks.site import site
from benchmarks.worker import Worker, worker
from django_delayq import send_delay_messages

PER_S = 200
LONGEST_DELAY_S = 2.0
MOST_CALLS_PER_S = 200
"""The most calls a second, because few disks let one process commit more often.

At a higher pace, each call sends several messages.
"""


def run() -> list[Result]:
    """Return the 99th percentile of the lateness, as the median of the rounds, and how many messages ran early."""
    with site() as server, worker(server) as running:
        return measure(server, running, PER_S, 5)


def measure(server: AnyServer, running: Worker, per_s: int, most_ms: float, where: str = "") -> list[Result]:
    """Send to the current site at a steady pace, and return the lateness that its worker recorded, with the bounds."""
    seconds = scaled(10, least=2)
    running.wait_until_up()
    rounds = []
    for number in range(ROUNDS):
        _send_for(seconds, per_s)
        rounds.append(_records(server, running, (number + 1) * seconds * per_s)[number * seconds * per_s :])
    late = [[one.lateness_ms for one in records] for records in rounds]
    p50, p99 = (median(quantiles(each, n=100)[percent - 1] for each in late) for percent in (50, 99))
    detail = f"p50 {p50:.2f} ms, max {max(map(max, late)):.2f} ms"
    early = sum(lateness_ms < 0 for each in late for lateness_ms in each)
    return [
        at_most(f"lateness at {per_s:,} messages/s{where}: p99", p99, most_ms, "ms", detail),
        at_most(f"early{where}, of {sum(map(len, late)):,}", early, 0, "messages"),
    ]


def _send_for(seconds: int, per_s: int) -> None:
    delays = random.Random(1)
    started = time.monotonic()
    at_once = max(per_s // MOST_CALLS_PER_S, 1)
    for number in range(0, seconds * per_s, at_once):
        time.sleep(max(started + number / per_s - time.monotonic(), 0))
        sends = [record.prepare(delay=delays.uniform(0, LONGEST_DELAY_S)) for _ in range(at_once)]
        send_delay_messages(sends)  # these are often due before all that wait


def _records(server: AnyServer, running: Worker, count: int) -> list[Record]:
    running.wait_until(lambda: count_records(server) >= count, f"{count} messages have run")
    return read_records(server)
