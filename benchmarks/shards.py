"""Measure what a message costs while it is drained: with many shards against one, and with many workers against one."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import redis

from benchmarks.rates import ROUNDS
from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.site import fill, site
from benchmarks.spent import commands, cpu_s
from benchmarks.worker import worker
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Pause

SHARDS = 64
WORKERS = 16
MOST = 1.3
"""The highest ratio. It is 1 if a message costs the same, however many shards or workers there are.

It is a bit more because shards and workers also cost something each second, which the messages share. When each claim
looked at all shards, the ratio was 9 for commands and 1.7 for processor time.
"""
QUEUE = "default"
POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a message: commands that Redis ran, and microseconds of a core that Redis and the workers took."""

    commands: float
    redis_us: float
    workers_us: float

    @property
    def cpu_us(self) -> float:
        """Return the microseconds of Redis and of the workers together."""
        return self.redis_us + self.workers_us

    def __str__(self) -> str:
        return f"{self.commands:.2f} commands, {self.redis_us:.0f} + {self.workers_us:.0f} µs"


def run() -> list[Result]:
    """Return the ratios of the costs, each the median of the rounds."""
    count = scaled(100_000, least=5_000)
    one, sharded, shared = [], [], []
    for _ in range(ROUNDS):
        one.append(_cost(1, 1, count))
        sharded.append(_cost(SHARDS, 1, count))
        shared.append(_cost(1, WORKERS, count))
    return [
        *_flat(f"a message of {count:,} drained: {SHARDS} shards / 1", sharded, one),
        *_flat(f"a message of {count:,} drained: {WORKERS} workers / 1", shared, one),
    ]


def _cost(shards: int, workers: int, count: int) -> Cost:
    with site(shards) as server, server.client() as client, ExitStack() as running:
        broker = get_backend()
        broker.presence.pause(Pause(QUEUE, None, "Until all is ready."))
        fill(count)
        started = [running.enter_context(worker(server, shards=shards)) for _ in range(workers)]
        started[0].wait_until_up(workers)
        pids = [int(client.info("server")["process_id"]), *(one.pid for one in started)]
        before, polls, calls_of_poll = _spent(client, pids), 0, _calls_of_poll(client)
        broker.presence.resume(QUEUE, None)
        while broker.queue.counts().totals["finished"] < count:
            polls += 1
            time.sleep(POLL_S)
        after = _spent(client, pids)
    ran, redis_s, *workers_s = (now - then for now, then in zip(after, before, strict=True))
    ran -= calls_of_poll * (polls + 2)  # one more was made to learn how many calls a poll makes
    return Cost(ran / count, 1e6 * redis_s / count, 1e6 * sum(workers_s) / count)


def _spent(client: redis.Redis, pids: list[int]) -> list[float]:
    return [commands(client), *map(cpu_s, pids)]


def _calls_of_poll(client: redis.Redis) -> int:
    before = commands(client)
    get_backend().queue.counts()
    return commands(client) - before


def _flat(what: str, costs: list[Cost], against: list[Cost]) -> list[Result]:
    ran = median(cost.commands / one.commands for cost, one in zip(costs, against, strict=True))
    busy = median(cost.cpu_us / one.cpu_us for cost, one in zip(costs, against, strict=True))
    detail = f"{_middle(costs)} against {_middle(against)}"
    return [
        at_most(f"{what}, commands", ran, MOST, "times", detail),
        at_most(f"{what}, processor", busy, MOST, "times"),
    ]


def _middle(costs: list[Cost]) -> Cost:
    return Cost(*(median(getattr(cost, part) for cost in costs) for part in ("commands", "redis_us", "workers_us")))
