"""Measure the cost of a worker that has nothing to do."""

import time
from contextlib import ExitStack
from statistics import median

import redis

from benchmarks.rates import ROUNDS
from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.server import private_cluster
from benchmarks.site import fill, sending_to, site
from benchmarks.spent import cpu_s, round_trips
from benchmarks.worker import worker

SETTLING_S = 2.0
HEARING_S = 16.0
"""After this many seconds each worker knows all others, and has adapted to them.

A worker learns of another one by that one's first or second heartbeat.
"""
ROUND_S = 10
CLUSTER_S = 28
"""The time of four heartbeats, and of seven looks of the first worker at the shards.

In a shorter round, one heartbeat or look more or less would change the result much.
"""
MOST_A_SECOND = 2.5
SHARDS = 16
"""The number of shards, all on one server.

A request about more shards is so long that the server reads it in parts, and each part counts as a round trip.
"""
ON_A_CLUSTER = ((4, 16), (16, 64))
"""The numbers of workers and shards."""


def run() -> list[Result]:
    """Return the round trips to Redis a second, and the share of a core."""
    trips_a_second, percent = _on_one_server(None)
    at_many_shards, _ = _on_one_server(SHARDS)
    return [
        at_most("an idle worker: round trips", trips_a_second, MOST_A_SECOND, "a second"),
        at_most("an idle worker: processor", percent, 0.5, "% of a core"),
        at_most(f"an idle worker, {SHARDS} shards: round trips", at_many_shards, MOST_A_SECOND, "a second"),
        *(_on_a_cluster(workers, shards) for workers, shards in ON_A_CLUSTER),
    ]


def _on_one_server(shards: int | None) -> tuple[float, float]:
    with site(shards) as server, server.client() as client, worker(server, shards=shards) as running:
        fill(1_000, delay="1d")
        running.wait_until_up()
        time.sleep(SETTLING_S)
        rounds = [_round([client], [running.pid], scaled(ROUND_S, least=5)) for _ in range(ROUNDS)]
    trips_a_second, percent = (median(figures) for figures in zip(*rounds, strict=True))
    return trips_a_second, percent


def _on_a_cluster(workers: int, shards: int) -> Result:
    with private_cluster() as cluster, sending_to(cluster, shards), ExitStack() as running:
        clients = [running.enter_context(client) for client in cluster.clients()]
        fill(1_000, delay="1d")
        started = [running.enter_context(worker(cluster, shards=shards)) for _ in range(workers)]
        started[0].wait_until_up(workers)
        time.sleep(HEARING_S)
        trips_a_second, _ = _round(clients, [one.pid for one in started], CLUSTER_S)
    what = f"{workers} idle workers, {shards} shards on a cluster: round trips"
    return at_most(what, trips_a_second / shards, 0.2, "a second and shard")


def _round(clients: list[redis.Redis], pids: list[int], seconds: float) -> tuple[float, float]:
    before, started = _spent(clients, pids), time.monotonic()
    time.sleep(seconds)
    (trips, busy_s), elapsed = _spent(clients, pids), time.monotonic() - started
    trips -= before[0] + len(clients)  # one of the reads of each client was our own
    return trips / elapsed, 100 * (busy_s - before[1]) / elapsed


def _spent(clients: list[redis.Redis], pids: list[int]) -> tuple[int, float]:
    return sum(map(round_trips, clients)), sum(map(cpu_s, pids))
