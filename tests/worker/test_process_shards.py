"""Many workers over many shards: some are killed, one is frozen and one joins, amid a load."""

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from django_delayq.brokers.base import BATCH, Header, Put, pages
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias
from django_delayq.worker.leases import HOLD
from tests.brokers.rig import OPTIONS
from tests.scale import scaled
from tests.servers.cluster import until
from tests.servers.redis import Server
from tests.worker.processes import Site, site_with

SHARDS = 16
LOAD = scaled(1_000)
SPREAD_MS = 100
WORKERS = 4
THREADS = 2
LEASE_S = 2
LEAST_GAP_S = (1 - HOLD) * LEASE_S
"""A worker starts nothing of whose lease less is left."""
HELD = [f"held-{n}" for n in range(WORKERS * THREADS)]
PLACES = ["one server", "cluster"] if scaled(100) > 100 else ["one server"]  # each takes seconds
TOTAL = LOAD + len(HELD)


@pytest.fixture(params=PLACES)
def location(request: pytest.FixtureRequest) -> str:
    """Where the shards are."""
    if request.param == "cluster":
        return str(request.getfixturevalue("redis_cluster").location)
    return str(request.getfixturevalue("redis_url"))


@pytest.fixture
def site(location: str, redis_server: Server, process_env: dict[str, str]) -> Iterator[Site]:
    """A site on them, with short leases."""
    alias = {
        "BROKER": "django_delayq.brokers.redis.RedisBroker",
        "LOCATION": location,
        "STORE": None,
        "OPTIONS": {"shards": SHARDS, "lease": f"{LEASE_S}s"},
    }
    broker = RedisBroker(Alias("default", location=location, options=replace(OPTIONS, shards=SHARDS)))
    with site_with(alias, broker, process_env, redis_server.directory) as site:
        yield site
    _traces(site).unlink(missing_ok=True)


def test_amid_workers_that_die_join_and_freeze_each_message_runs_once_unless_a_lease_ran_out(site: Site) -> None:
    workers = [site.worker("--threads", str(THREADS)) for _ in range(WORKERS)]
    site.send(*HELD, key="hold")
    held = [site.line.next() for _ in HELD]  # each worker has as many as it can hold: the faults hit leases
    _send_load(site, range(LOAD // 2))
    _until_finished(site, LOAD // 10)
    first, second, frozen, healthy = workers
    for killed in (first, second):
        killed.kill()
    joined = site.worker("--threads", str(THREADS))
    joined.until_says("Queues:")
    _send_load(site, range(LOAD // 2, LOAD))
    _until_finished(site, LOAD * 6 // 10)
    frozen.signal(signal.SIGSTOP)
    for call in held:
        if call.pid != frozen.pid:
            call.release()
    _hear_all_held(site, without={frozen.pid})
    _until_finished(site, TOTAL)

    frozen.signal(signal.SIGCONT)
    for call in held:
        call.release()
    frozen.until_says("overrun")
    assert [worker.stop() for worker in (frozen, healthy, joined)] == [0, 0, 0]
    assert site.totals()["finished"] == TOTAL
    assert site.totals()["reclaimed"] >= 3 * THREADS
    _check_runs(site, frozen.pid)


def _send_load(site: Site, numbers: Sequence[int]) -> None:
    """What is due in nearly the same moment, once all is sent: more than the workers run at once."""
    chance, header = random.Random(1), Header("default", "trace")
    due_ms = int(time.time() * 1000) + 200 + len(numbers) // 10
    puts = [Put(f"{n}", header, b'""', at_ms=due_ms + chance.randrange(SPREAD_MS)) for n in numbers]
    for page in pages(puts, BATCH):
        site.broker.put(page)


def _until_finished(site: Site, count: int) -> None:
    until(lambda: site.broker.counts().totals["finished"] >= count)


def _hear_all_held(site: Site, without: set[int]) -> None:
    """Let what is held go on, until each has run to its end in a worker that lives."""
    ran: set[str] = set()
    while ran < set(HELD):
        call = site.line.next()
        call.release()
        if call.what == "ran" and call.pid not in without:
            ran.add(call.id)


def _check_runs(site: Site, frozen: int) -> None:
    """None was early. Who ran a message again did so when a lease had run out; but the frozen one may be late."""
    traces = [[int(word) for word in line.split()] for line in _traces(site).read_text().splitlines()]
    assert {id for id, *_ in traces} == set(range(LOAD))
    assert [trace for trace in traces if trace[3] < trace[2] * 1_000_000] == []
    starts: dict[int, list[float]] = {}
    for id, pid, _, started_ns in traces:
        if pid != frozen:
            starts.setdefault(id, []).append(started_ns / 1e9)
    gaps = [later - earlier for each in starts.values() for earlier, later in pairwise(sorted(each))]
    assert min(gaps, default=LEASE_S) >= LEAST_GAP_S
    by_frozen = Counter(id for id, pid, *_ in traces if pid == frozen)
    assert by_frozen.total() == len(by_frozen)


def _traces(site: Site) -> Path:
    return Path(f"{site.line.path}.traces")
