"""Measure sending one message at a time, against raw EVALSHA round trips of the same script with prepared arguments.

So the ratio shows what our checks, encoding and client cost. A second result, against the smallest script that could
store a message, has no bound: it shows what the promises cost in the server.
"""

from collections.abc import Callable, Iterator
from itertools import count
from time import perf_counter

import redis

from benchmarks.delayed import noop
from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import DATA, DATA_BYTES, KEYS, site
from django_delayq.brokers.base import Header, NewMessage
from django_delayq.brokers.redis import enqueue
from django_delayq.brokers.redis.shards import CallCells, load

SLICE = 100
LEAST = "redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) return redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])"


def run() -> list[Result]:
    """Return the ratios of sends a second to round trips a second."""
    with site() as server, server.client() as client:
        turns = scaled(5_000 // SLICE)
        same = in_turn(_ours_s, _same_script(client), SLICE, turns)
        least = in_turn(_ours_s, _least_script(client), SLICE, turns)
    return [
        at_least("one-at-a-time send / raw EVALSHA round trip of its script", same.ratio, 0.8, str(same)),
        Result("one-at-a-time send / EVALSHA of one HSET and one ZADD", f"{least.ratio:.2f}", "none", True, str(least)),
    ]


def _ours_s() -> float:
    started = perf_counter()
    for _ in range(SLICE):
        noop.send(DATA, delay=3600)
    return perf_counter() - started


def _same_script(client: redis.Redis) -> Callable[[], float]:
    put = NewMessage("an id of 22 characters", Header("floor", noop.key), DATA_BYTES, delay_ms=3_600_000)
    (call,) = next(enqueue.enqueue(KEYS, CallCells(), [put], "keep"))
    client.script_load(load("enqueue").source)
    fixed = (load("enqueue").sha, len(call.keys), *call.keys)
    _, on_conflict, channel, most_bytes, _, *rest = call.arguments
    calls = ((*fixed, n, on_conflict, channel, most_bytes, f"floor-message-{n:08}", *rest) for n in count(1))
    if client.evalsha(*next(calls))[1:]:  # type: ignore[arg-type]  # their stub
        raise RuntimeError("The floor's message is not created: its arguments are not those of enqueue.lua.")
    return _timed(client, calls)


def _least_script(client: redis.Redis) -> Callable[[], float]:
    fixed = (client.script_load(LEAST), 2, "floor:msg", "floor:wait")
    return _timed(client, ((*fixed, f"floor-message-{n:08}", 1_900_000_000_000, DATA_BYTES) for n in count(1)))


def _timed(client: redis.Redis, calls: Iterator[tuple[object, ...]]) -> Callable[[], float]:
    def floor_s() -> float:
        ready = [next(calls) for _ in range(SLICE)]
        started = perf_counter()
        for call in ready:
            client.evalsha(*call)  # type: ignore[arg-type]  # their stub
        return perf_counter() - started

    return floor_s
