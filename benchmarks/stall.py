"""Measure the longest that one call of Redis takes when very many messages are due at once."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import redis

from benchmarks.drains import drain_s
from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.site import fill, site
from django_delayq.brokers import get_backend
from django_delayq.brokers.redis.shards import load

LOGGED_US = 5_000
"""The shortest call that is logged, in µs. Few calls take as long.

A very long log would take memory. The server would free it during later calls, and so make them longer.
"""
MOST_LOGGED = 100_000
MOST_MS = 10
TURNS = 5
SCRIPTS = ("enqueue", "claim", "finish", "reclaim", "misplaced", "audit")

Longest = tuple[float, str]
"""The length of the longest call in milliseconds, and its name."""


def run() -> list[Result]:
    """Return the longest calls in the server's log while messages are sent, audited and run, as medians of the turns.

    A call that is long by itself is long in each turn. A call that the machine delayed is long in one turn only.
    """
    count = scaled(1_000_000, least=10_000)
    whats = [f"{count:,} due at once: longest call that sends them", "that audits them", "that runs them"]
    turns = [_turn(count) for _ in range(TURNS)]
    return [_median(what, longest) for what, longest in zip(whats, zip(*turns, strict=True), strict=True)]


def _turn(count: int) -> list[Longest]:
    with site() as server, server.client() as client, _core_of_its_own(int(client.info("server")["process_id"])):
        client.config_set("slowlog-log-slower-than", LOGGED_US)
        client.config_set("slowlog-max-len", MOST_LOGGED)
        fill(count)
        sent = _longest(client)
        get_backend().queue.counts()
        get_backend().queue.audit()
        audited = _longest(client)
        drain_s(server, count)
        return [sent, audited, _longest(client)]


@contextmanager
def _core_of_its_own(server: int) -> Iterator[None]:
    """Keep everything that the benchmark starts off the server's core for the block.

    The log measures wall-clock time: if the server shared a core with its clients, their work would count in its calls.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(server, cores[-1:])
        os.sched_setaffinity(0, cores[:-1])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _longest(client: redis.Redis) -> Longest:
    log: list[dict[str, Any]] = client.slowlog_get(MOST_LOGGED)
    client.slowlog_reset()
    log = [call for call in log if not call["command"].startswith(b"SLOWLOG")]  # emptying a long log takes its time
    if not log:
        return LOGGED_US / 1000, "none was so long as to be logged"
    longest = max(log, key=lambda call: call["duration"])
    return longest["duration"] / 1000, _name(longest["command"])


def _median(what: str, longest: Sequence[Longest]) -> Result:
    detail = ", ".join(f"{name} {ms:.1f}" for ms, name in longest)
    return at_most(what, median(ms for ms, _ in longest), MOST_MS, "ms", detail)


def _name(command: bytes) -> str:
    by_sha = {load(name).sha.encode(): name for name in SCRIPTS}
    verb, *arguments = command.split(b" ")
    return by_sha.get(arguments[0] if arguments else b"", verb.decode())
