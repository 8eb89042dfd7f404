"""Measure sending in bulk, against a redis-py pipeline of one HSET and one ZADD for each 500 messages."""

from time import perf_counter

import redis

from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import DATA_BYTES, fill, site

BATCH = 500
SLICE = 25_000


def run() -> list[Result]:
    """Return our messages a second as a ratio to the floor's."""
    with site() as server, server.client() as client:
        numbers = iter(range(10**8))

        def floor() -> float:
            return floor_fill(client, [f"floor-message-{next(numbers):08}" for _ in range(SLICE)], 1_900_000_000_000)

        _ours_s()
        floor()
        rates = in_turn(_ours_s, floor, SLICE, turns=scaled(6))
    return [at_least("send_delay_messages / raw pipelined HSET+ZADD of 500", rates.ratio, 0.5, str(rates))]


def floor_fill(client: redis.Redis, ids: list[str], due_ms: int) -> float:
    """Write messages in the rawest way. Return the seconds that it took."""
    started = perf_counter()
    for n in range(0, len(ids), BATCH):
        batch = ids[n : n + BATCH]
        pipeline = client.pipeline(transaction=False)
        pipeline.hset("floor:msg", mapping=dict.fromkeys(batch, DATA_BYTES))
        pipeline.zadd("floor:wait", dict.fromkeys(batch, due_ms))
        pipeline.execute()
    return perf_counter() - started


def _ours_s() -> float:
    started = perf_counter()
    fill(SLICE, delay=3600)
    return perf_counter() - started
