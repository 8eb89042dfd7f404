"""Sending one message at a time, against one EVALSHA round trip that does what a send can't do without."""

from time import perf_counter

import redis

from benchmarks.delayed import noop
from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import DATA, DATA_BYTES, site

SLICE = 100
FLOOR = "redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) return redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])"


def run() -> list[Result]:
    """The ratio of sends to round trips."""
    with site() as server, server.client() as client:
        sha = client.script_load(FLOOR)
        ids = (f"floor-message-{number:08}" for number in range(10**8))

        def floor() -> float:
            return _floor_s(client, sha, [next(ids) for _ in range(SLICE)])

        _ours_s()
        floor()
        rates = in_turn(_ours_s, floor, SLICE, turns=scaled(5_000 // SLICE))
    return [at_least("one-at-a-time send / raw EVALSHA round trip", rates.ratio, 0.8, str(rates))]


def _ours_s() -> float:
    started = perf_counter()
    for _ in range(SLICE):
        noop.send(DATA, delay=3600)
    return perf_counter() - started


def _floor_s(client: redis.Redis, sha: str, ids: list[str]) -> float:
    started = perf_counter()
    for id in ids:
        client.evalsha(sha, 2, "floor:msg", "floor:wait", id, 1_900_000_000_000, DATA_BYTES)
    return perf_counter() - started
