"""Measure how much memory of Redis a waiting message takes, and how much stays in use when it is done."""

from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.server import Server
from benchmarks.site import KEYS, fill, site
from benchmarks.spent import memory_bytes
from benchmarks.until import wait_until
from benchmarks.worker import worker

MOST_LEFT = 64 * 1024
"""The bytes of totals, timers and answers to the last calls: a fixed amount, whatever the number of messages."""


def run() -> list[Result]:
    """Return the bytes of each waiting message, and the bytes and keys that are left once they are done."""
    count = scaled(100_000, least=10_000)
    with site() as server, server.client() as client:
        fill(1_000)
        _drain(server)  # only the first messages cost this: scripts, totals
        before = memory_bytes(client)
        fill(count)
        waiting = memory_bytes(client) - before
        _drain(server)
        wait_until(lambda: memory_bytes(client) - before <= MOST_LEFT, "memory is free again", within_s=10)
        left = memory_bytes(client) - before
        keys_left = [key for key in client.scan_iter() if _holds_messages(key.decode())]
    return [
        at_most("Redis memory per waiting message, 100 bytes of data", waiting / count, 450, "bytes", f"of {count:,}"),
        at_most("left when all are done", left, MOST_LEFT, "bytes"),
        at_most("keys left that hold messages", len(keys_left), 0, "keys"),
    ]


def _drain(server: Server) -> None:
    with worker(server, "--drain") as running:
        running.wait()


def _holds_messages(key: str) -> bool:
    return key in (KEYS.msg, KEYS.state, KEYS.running, KEYS.suspect, KEYS.error) or key.startswith(KEYS.wait(""))
