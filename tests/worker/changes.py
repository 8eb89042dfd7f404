"""Changes that come fast while workers are killed: after the last send of an id, a run sees its data."""

import os
import random
from pathlib import Path
from time import monotonic, sleep

from django_delayq.brokers.base import Header, NewMessage
from django_delayq.core.codec import dumps
from tests.scale import scaled
from tests.worker.processes import Site

KILLS = scaled(4)
CHANGES = 60
"""Sends before each kill."""
IDS = ["a", "b", "c"]
PATIENCE_S = 120


def assert_the_last_change_is_seen(site: Site, record: Path) -> None:
    """Send changes of some ids, kill the workers that run them, and wait until nothing is left."""
    chance = random.Random(os.environ.get("PYTEST_RANDOM_SEED"))
    workers = [site.worker() for _ in range(2)]
    kept, last = 0, {}
    for kill in range(KILLS):
        victim = workers.pop(0)
        victim.until_says("Queues:")
        for n in range(CHANGES):
            id = chance.choice(IDS)
            last[id] = f"{id}:{kill}.{n}"
            message = NewMessage(
                id, Header("default", "record slowly"), dumps(last[id]), max_wait_ms=1_000, while_running="again"
            )
            (enqueued,) = site.broker.queue.enqueue([message], "replace")
            kept += enqueued.kept
            sleep(chance.uniform(0, 0.02))  # what the workers are at then is what is tested
        victim.kill()
        workers.append(site.worker())
    until = monotonic() + PATIENCE_S
    while any(site.broker.queue.get(id) is not None and not _has_ended(site, id) for id in IDS):
        assert monotonic() < until, "\n=====\n".join(worker.text[-6000:] for worker in workers)
        sleep(0.1)
    assert kept > 0
    seen = {line.partition(":")[0]: line for line in record.read_text().splitlines()}
    assert seen == last
    for worker in workers:
        worker.until_says("Queues:")
        assert worker.stop() == 0
    assert site.totals()["finished"] > len(IDS)


def _has_ended(site: Site, id: str) -> bool:
    return site.see(id).state in ("finished", "failed")
