"""The longest that one call of Redis takes when very many messages are due at once."""

import redis

from benchmarks.drains import drain_s
from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.site import fill, site
from django_delayq.brokers import get_broker

LOGGED_US = 1_000


def run() -> list[Result]:
    """The longest call in the server's own log: of sending, of the looks, and of the worker."""
    count = scaled(1_000_000, least=10_000)
    with site() as server, server.client() as client:
        client.config_set("slowlog-log-slower-than", LOGGED_US)
        client.config_set("slowlog-max-len", 100_000)
        fill(count)
        get_broker().counts()
        get_broker().audit()
        drain_s(server, count)
        longest_us, command = _longest(client)
    return [at_most(f"{count:,} due at once: longest call", longest_us / 1000, 10, "ms", command)]


def _longest(client: redis.Redis) -> tuple[int, str]:
    log = client.slowlog_get(100_000)
    if not log:
        return LOGGED_US, f"none over {LOGGED_US} µs"
    longest = max(log, key=lambda entry: entry["duration"])
    return longest["duration"], f"{len(log)} over {LOGGED_US} µs"
