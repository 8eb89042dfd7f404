"""What Redis holds for the rows of a store: the alarms of the next seconds, however many wait."""

import time

from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.spent import memory_bytes
from benchmarks.stored_rows import DAY_MS, insert_spread
from benchmarks.stored_site import stored_site

MOST_BYTES = 64 * 1024
"""As `memory` allows for what does not depend on the number of messages; some 140 alarms are a fifth of it."""
PASSES_S = 25
"""So long every pass over the window is seen, and the one that begins with the first row."""


def run() -> list[Result]:
    """Return the most memory of these seconds, beyond what a worker with nothing to do needs."""
    count = scaled(1_000_000, least=1_000)
    with stored_site() as site, site.server.client() as redis, site.client() as client, site.worker() as running:
        insert_spread(client, "bench.noop", 100, 0, 1)
        running.wait_until_up()
        time.sleep(5)  # what the first messages cost: scripts, totals
        before = memory_bytes(redis)
        insert_spread(client, "bench.noop", count, 0, DAY_MS / count)
        most = 0
        until = time.monotonic() + PASSES_S
        while time.monotonic() < until:
            most = max(most, memory_bytes(redis) - before)
            time.sleep(0.1)
    what = f"Redis memory with {count:,} rows waiting over a day, beyond that with none"
    return [at_most(what, most, MOST_BYTES, "bytes", f"{most / count:.2f} a row")]
