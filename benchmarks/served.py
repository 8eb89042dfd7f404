"""Measure how late messages start in shards whose workers were killed."""

import random
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from statistics import median

from benchmarks.delayed import record
from benchmarks.rates import ROUNDS
from benchmarks.records import read_records
from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.server import AnyServer, private_cluster, private_server
from benchmarks.site import sending_to
from benchmarks.worker import worker
from django_delayq.brokers.redis.shards import Shards
from django_delayq.conf import Options

SHARDS = 16
WORKERS = 4
PER_S = 200
LONGEST_DELAY_S = 1.0
MOST_MS = 250
"""If a shard waited until its worker's heartbeat or leases ran out, its messages would be many seconds late."""


def run() -> list[Result]:
    """Return how late the latest message started that was due after the kill, for one server and for a cluster."""
    what = f"after SIGKILL of 2 of {WORKERS} workers: latest start in the worst of {SHARDS} shards"
    return [_late(what, private_server), _late(f"{what} on a cluster", private_cluster)]


def _late(what: str, start: Callable[[], AbstractContextManager[AnyServer]]) -> Result:
    late = [_round(start) for _ in range(ROUNDS)]
    return at_most(what, median(late), MOST_MS, "ms", ", ".join(f"{ms:.0f}" for ms in late))


def _round(start: Callable[[], AbstractContextManager[AnyServer]]) -> float:
    shards = Shards(Options().prefix, SHARDS)
    with start() as server, sending_to(server, SHARDS), ExitStack() as running:
        workers = [running.enter_context(worker(server, shards=SHARDS)) for _ in range(WORKERS)]
        workers[0].wait_until_up(WORKERS)
        _send_for(1)
        for killed in workers[1:3]:
            killed.kill()
        killed_ms = time.time_ns() / 1e6
        sent = _send_for(scaled(5, least=2))
        workers[0].wait_until(lambda: sent <= {one.id for one in read_records(server)}, "what is sent then has run")
        late: defaultdict[int, list[float]] = defaultdict(list)
        for one in read_records(server):
            if one.id in sent and one.ran_ms - one.lateness_ms > killed_ms:
                late[shards.of(one.id).shard].append(one.lateness_ms)
    return max(map(max, late.values()))


def _send_for(seconds: int) -> set[str]:
    delays = random.Random(1)
    started = time.monotonic()
    ids = set()
    for number in range(seconds * PER_S):
        time.sleep(max(started + number / PER_S - time.monotonic(), 0))
        ids.add(record.send(delay=delays.uniform(0, LONGEST_DELAY_S)).id)
    return ids
