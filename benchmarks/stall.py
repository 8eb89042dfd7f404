"""The longest that one call of Redis takes when very many messages are due at once."""

from typing import Any

import redis

from benchmarks.drains import drain_s
from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.site import fill, site
from django_delayq.brokers import get_broker
from django_delayq.brokers.redis.scripts import load

LOGGED_US = 1_000
MOST_LOGGED = 100_000
MOST_MS = 10
SCRIPTS = ("put", "claim", "finish", "reclaim", "misplaced", "audit")


def run() -> list[Result]:
    """The longest call while they are sent, audited and run, by the server's own log.

    The log goes by the clock: on a machine with more to do than cores it counts the server's wait for a core too.
    """
    count = scaled(1_000_000, least=10_000)
    with site() as server, server.client() as client:
        client.config_set("slowlog-log-slower-than", LOGGED_US)
        client.config_set("slowlog-max-len", MOST_LOGGED)
        fill(count)
        sent = _longest(client, f"{count:,} due at once: longest call that sends them")
        get_broker().counts()
        get_broker().audit()
        audited = _longest(client, "longest call that audits them")
        drain_s(server, count)
        ran = _longest(client, "longest call that runs them")
    return [sent, audited, ran]


def _longest(client: redis.Redis, what: str) -> Result:
    log: list[dict[str, Any]] = client.slowlog_get(MOST_LOGGED)
    client.slowlog_reset()
    log = [call for call in log if not call["command"].startswith(b"SLOWLOG")]  # emptying a long log takes its time
    if not log:
        return at_most(what, LOGGED_US / 1000, MOST_MS, "ms", "none was so long as to be logged")
    longest = max(log, key=lambda call: call["duration"])
    over = sum(call["duration"] > MOST_MS * 1000 for call in log)
    detail = f"{_name(longest['command'])}; {over} calls over {MOST_MS} ms"
    return at_most(what, longest["duration"] / 1000, MOST_MS, "ms", detail)


def _name(command: bytes) -> str:
    by_sha = {load(name).sha.encode(): name for name in SCRIPTS}
    verb, *arguments = command.split(b" ")
    return by_sha.get(arguments[0] if arguments else b"", verb.decode())
