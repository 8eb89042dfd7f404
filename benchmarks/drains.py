"""Drain due messages with the real worker."""

import redis

from benchmarks.server import Server
from benchmarks.site import KEYS
from benchmarks.worker import worker

LONGEST_S = 600


def drain_s(server: Server, count: int, *options: str) -> float:
    """Let a worker run `count` due messages. Return the seconds from its first to its last finish.

    The time includes all that a worker does for a message, up to its settlement, but not the worker's start.
    """
    with server.client() as client, worker(server, "--drain", *options) as running:
        before = _finished(client)

        def finish(number: int) -> float:
            what = f"it finishes {number} messages"
            return running.wait_until(lambda: _finished(client) >= before + number, what, LONGEST_S)

        started = finish(1)
        already = _finished(client) - before
        ended = finish(count)
        running.wait()
    return (ended - started) * count / (count - already)


def _finished(client: redis.Redis) -> int:
    return int(client.hget(KEYS.count, "finished") or 0)
