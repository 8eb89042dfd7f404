"""A fire: many workers over many shards, of which two are killed, one is frozen and one joins, amid a load.

And the account of it: each message ran once, or again only where a lease had run out. `make soak` has more of it.
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from django_delayq.brokers.base import BATCH, Header, Put, pages
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias
from django_delayq.worker.leases import HOLD
from tests.brokers.rig import OPTIONS
from tests.servers.cluster import until
from tests.worker.processes import Site, WorkerProcess, site_with

SHARDS = 16
WORKERS = 4
THREADS = 2
SPREAD_MS = 100
LEASE_S = 2
LEAST_GAP_S = (1 - HOLD) * LEASE_S
"""A worker starts nothing of whose lease less is left."""
HELD = [f"held-{n}" for n in range(WORKERS * THREADS)]


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the messages. `again`: how many ran more than once, each time after a lease had run out."""

    sent: int
    finished: int
    again: int
    reclaimed: int
    wrong: Sequence[str]

    def __str__(self) -> str:
        told = f"{self.sent:,} sent, {self.finished:,} finished, {self.again:,} ran again after a lease had run out"
        return ". ".join([f"{told}; {len(self.wrong)} wrong", *self.wrong[:10]])


@contextmanager
def site_on(location: str, env: Mapping[str, str], directory: Path) -> Iterator[Site]:
    """A site for it, with short leases."""
    alias = {
        "BROKER": "django_delayq.brokers.redis.RedisBroker",
        "LOCATION": location,
        "STORE": None,
        "OPTIONS": {"shards": SHARDS, "lease": f"{LEASE_S}s"},
    }
    broker = RedisBroker(Alias("default", location=location, options=replace(OPTIONS, shards=SHARDS)))
    with site_with(alias, broker, env, directory) as site:
        yield site
    _traces(site).unlink(missing_ok=True)


def burn(site: Site, load: int) -> Account:
    """All of it, with `load` messages beside those that the faults hit. Raises `AssertionError` if it stands still."""
    workers = [_worker(site) for _ in range(WORKERS)]
    first, second, frozen, healthy = workers
    site.send(*HELD, key="hold")
    held = [site.line.next() for _ in HELD]  # each worker has as many as it can hold: the faults hit leases
    _send_load(site, range(load // 2))
    _until_finished(site, load // 10)
    for killed in (first, second):
        killed.kill()
    joined = _worker(site)
    joined.until_says("Queues:")
    _send_load(site, range(load // 2, load))
    _until_finished(site, load * 6 // 10)
    frozen.signal(signal.SIGSTOP)
    for call in held:
        if call.pid != frozen.pid:
            call.release()
    _hear_all_held(site, without={frozen.pid})
    _until_finished(site, load + len(HELD))

    frozen.signal(signal.SIGCONT)
    for call in held:
        call.release()
    frozen.until_says("overrun")
    codes = [worker.stop() for worker in (frozen, healthy, joined)]
    return _account(site, load, frozen.pid, codes)


def _worker(site: Site) -> WorkerProcess:
    return site.worker("--threads", str(THREADS))


def _send_load(site: Site, numbers: Sequence[int]) -> None:
    """What is due in nearly the same moment, once all is sent: more than the workers run at once."""
    chance, header = random.Random(1), Header("default", "trace")
    due_ms = int(time.time() * 1000) + 200 + len(numbers) // 10
    puts = [Put(f"{n}", header, b'""', at_ms=due_ms + chance.randrange(SPREAD_MS)) for n in numbers]
    for page in pages(puts, BATCH):
        site.broker.put(page)


def _until_finished(site: Site, count: int) -> None:
    """Wait, for as long as some finish."""
    seen = _finished(site)
    while seen < count:
        until(lambda before=seen: _finished(site) > before)  # type: ignore[misc]  # mypy knows no default of a lambda
        seen = _finished(site)


def _finished(site: Site) -> int:
    return site.broker.counts().totals["finished"]


def _hear_all_held(site: Site, without: set[int]) -> None:
    """Let what is held go on, until each has run to its end in a worker that lives."""
    ran: set[str] = set()
    while ran < set(HELD):
        call = site.line.next()
        call.release()
        if call.what == "ran" and call.pid not in without:
            ran.add(call.id)


def _account(site: Site, load: int, frozen: int, codes: Sequence[int]) -> Account:
    audit = site.broker.audit()
    sent, finished = load + len(HELD), audit.totals["finished"]
    traces = [[int(word) for word in line.split()] for line in _traces(site).read_text().splitlines()]
    runs = Counter(id for id, *_ in traces)
    wrong = [*audit.differences, *_wrong_runs(traces, frozen)]
    wrong += [f"Message {id} never ran" for id in range(load) if id not in runs]
    if finished != sent:
        wrong.append(f"{finished - sent:+} finished that were not sent, or not finished")
    if any(codes):
        wrong.append(f"The workers that were stopped exited with {codes}")
    again = sum(count > 1 for count in runs.values())
    return Account(sent, finished, again, audit.totals["reclaimed"], wrong)


def _wrong_runs(traces: Sequence[Sequence[int]], frozen: int) -> Iterator[str]:
    """What was early. What ran again before a lease had run out; but the frozen worker may be late, once each."""
    starts: dict[int, list[float]] = {}
    for id, pid, due_ms, started_ns in traces:
        if started_ns < due_ms * 1_000_000:
            yield f"Message {id} ran {due_ms - started_ns / 1e6:.1f} ms early"
        if pid != frozen:
            starts.setdefault(id, []).append(started_ns / 1e9)
    for id, each in starts.items():
        for earlier, later in pairwise(sorted(each)):
            if later - earlier < LEAST_GAP_S:
                yield f"Message {id} ran again after {later - earlier:.3f} s"
    by_frozen = Counter(id for id, pid, *_ in traces if pid == frozen)
    yield from (f"Message {id} ran {count} times in the frozen worker" for id, count in by_frozen.items() if count > 1)


def _traces(site: Site) -> Path:
    return Path(f"{site.line.path}.traces")
