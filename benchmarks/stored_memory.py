"""Measure what Redis holds for the rows of a store: the alarms of the next seconds, however many rows wait."""

import time

from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.site import KEYS
from benchmarks.spent import memory_bytes
from benchmarks.stored_rows import DAY_MS, insert_spread
from benchmarks.stored_site import stored_site

MOST_BYTES = 64 * 1024
"""The bound of `memory` for data that don't grow with the number of messages. Some 140 alarms take a fifth of it."""
NEXT_S = 15
"""The length of the window, ten seconds, and some more seconds because passes may be late."""
PASSES_S = 25
"""The time of the measurement. It includes every pass over the window, and the pass that begins with the first row."""


def run() -> list[Result]:
    """Return the most memory and alarms within `PASSES_S`, beyond the memory that a worker with nothing to do needs."""
    count = scaled(1_000_000, least=100_000)
    with stored_site() as site, site.server.client() as redis, site.client() as client, site.worker() as running:
        insert_spread(client, "bench.noop", 100, 0, 1)
        running.wait_until_up()
        time.sleep(5)  # the first messages cost more: scripts, totals
        before = memory_bytes(redis)
        insert_spread(client, "bench.noop", count, 0, DAY_MS / count)
        most = most_alarms = 0
        until = time.monotonic() + PASSES_S
        while time.monotonic() < until:
            most = max(most, memory_bytes(redis) - before)
            most_alarms = max(most_alarms, sum(redis.zcard(key) for key in redis.scan_iter(KEYS.wait("*"))))
            time.sleep(0.1)
    what = f"with {count:,} rows waiting over a day"
    due = NEXT_S * 1000 * count / DAY_MS
    return [
        at_most(f"Redis memory {what}, beyond that with none", most, MOST_BYTES, "bytes"),
        at_most(f"alarms {what}", most_alarms, round(due), "alarms", f"what is due within {NEXT_S} s"),
    ]
