"""A fire: many workers over many shards, of which two are killed, one is frozen and one joins, amid a load.

Where a worker is several processes under a supervisor, the second to be killed loses these alone, and those of another
are frozen for a while. And the account of it: each message ran once, or again only where a lease had run out or the
process that ran it was killed. `make soak` has more of it.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil

from django_delayq.brokers.base import BATCH, Header, NewMessage, pages
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias
from django_delayq.worker.leases import HOLD
from tests.brokers.rig import OPTIONS
from tests.servers.cluster import until
from tests.worker.processes import Call, Site, WorkerProcess, site_with

SHARDS = 16
SPREAD_MS = 100
LEASE_S = 2
LEAST_GAP_S = (1 - HOLD) * LEASE_S
"""A worker starts nothing of whose lease less is left."""
HELD = [f"held-{n}" for n in range(4)]


class Executor(NamedTuple):
    """What a worker runs its handlers with, and what it says when one ends after its lease."""

    options: Sequence[str]
    late: str


THREADS = Executor(("--threads", "2"), "overrun")
PROCESSES = Executor(("--processes", "2"), "the process that ran it ended")
MIXES = {
    "threads": [THREADS] * 4,
    "processes": [PROCESSES] * 4,
    "both": [THREADS, PROCESSES, THREADS, THREADS],
}
"""The worker that is killed, the one whose hands are, the one that is frozen, and the one that comes through."""


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the messages. `again`: how many ran more than once, each for a reason."""

    sent: int
    finished: int
    again: int
    reclaimed: int
    wrong: Sequence[str]

    def __str__(self) -> str:
        told = f"{self.sent:,} sent, {self.finished:,} finished, {self.again:,} ran again after a fault"
        return ". ".join([f"{told}; {len(self.wrong)} wrong", *self.wrong[:10]])


def site_on(location: str, env: Mapping[str, str], directory: Path) -> AbstractContextManager[Site]:
    """A site for it, with short leases."""
    alias = {
        "BROKER": "django_delayq.brokers.redis.RedisBroker",
        "LOCATION": location,
        "STORE": None,
        "OPTIONS": {"shards": SHARDS, "lease": f"{LEASE_S}s"},
    }
    broker = RedisBroker(Alias("default", location=location, options=replace(OPTIONS, shards=SHARDS)))
    return site_with(alias, broker, env, directory)


def burn(site: Site, load: int, mix: Sequence[Executor]) -> Account:
    """All of it, with `load` messages beside those that the faults hit. Raises `AssertionError` if it stands still."""
    workers = [site.worker(*hands.options) for hands in mix]
    first, second, frozen, healthy = workers
    held = _hold(site, workers)  # each worker has one: the faults hit leases
    _send_load(site, range(load // 2))
    _until_finished(site, load // 10)
    first.kill()
    killed, stopped = second.children, healthy.children
    _signal_each(killed or [second.pid], signal.SIGKILL)
    _signal_each(stopped, signal.SIGSTOP)
    joined = site.worker(*mix[-1].options)
    joined.until_says("Queues:")
    _send_load(site, range(load // 2, load))
    _until_finished(site, load * 6 // 10)
    _signal_each(stopped, signal.SIGCONT)
    late = {frozen.pid, *frozen.children}
    frozen.signal_all(signal.SIGSTOP)
    for worker, call in held.items():
        if worker is not frozen:
            call.release()
    _hear_all_held(site)
    _until_finished(site, load + len(HELD))

    frozen.signal_all(signal.SIGCONT)
    held[frozen].release()
    frozen.until_says(mix[2].late)
    codes = [worker.stop() for worker in (frozen, healthy, joined, *([second] if killed else []))]
    return _account(site, load, late, killed, codes)


def _hold(site: Site, workers: Sequence[WorkerProcess]) -> dict[WorkerProcess, Call]:
    """What each worker holds, which is as much as it can."""
    site.send(*HELD, key="grip")
    calls = [site.line.next() for _ in HELD]
    by_pid = {pid: call for call in calls for pid in (call.pid, psutil.Process(call.pid).ppid())}
    return {worker: by_pid[worker.pid] for worker in workers}


def _signal_each(pids: Iterable[int], signum: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, signum)


def _send_load(site: Site, numbers: Sequence[int]) -> None:
    """What is due in nearly the same moment, once all is sent: more than the workers run at once."""
    chance, header = random.Random(1), Header("default", "trace")
    due_ms = int(time.time() * 1000) + 200 + len(numbers) // 10
    puts = [NewMessage(f"{n}", header, b'""', at_ms=due_ms + chance.randrange(SPREAD_MS)) for n in numbers]
    for page in pages(puts, BATCH):
        site.broker.queue.enqueue(page)


def _until_finished(site: Site, count: int) -> None:
    """Wait, for as long as some finish."""
    seen = _finished(site)
    while seen < count:
        until(lambda before=seen: _finished(site) > before)  # type: ignore[misc]  # mypy knows no default of a lambda
        seen = _finished(site)


def _finished(site: Site) -> int:
    return site.broker.queue.counts().totals["finished"]


def _hear_all_held(site: Site) -> None:
    """Let what is held go on, until each has run to its end."""
    ran: set[str] = set()
    while ran < set(HELD):
        call = site.line.next()
        call.release()
        if call.what == "ran":
            ran.add(call.id)


def _account(site: Site, load: int, frozen: Collection[int], killed: Collection[int], codes: Sequence[int]) -> Account:
    audit = site.broker.queue.audit()
    sent, finished = load + len(HELD), audit.totals["finished"]
    traces = [[int(word) for word in line.split()] for line in _traces(site).read_text().splitlines()]
    runs = Counter(id for id, *_ in traces)
    wrong = [*audit.differences, *_wrong_runs(traces, frozen, killed)]
    wrong += [f"Message {id} never ran" for id in range(load) if id not in runs]
    if finished != sent:
        wrong.append(f"{finished - sent:+} finished that were not sent, or not finished")
    if any(codes):
        wrong.append(f"The workers that were stopped exited with {codes}")
    again = sum(count > 1 for count in runs.values())
    return Account(sent, finished, again, audit.totals["reclaimed"], wrong)


def _wrong_runs(traces: Sequence[Sequence[int]], frozen: Collection[int], killed: Collection[int]) -> Iterator[str]:
    """What was early. What ran again before a lease had run out; but a frozen thread may be late, once for each, and
    what a killed process ran, one message, runs again at once."""
    starts: dict[int, list[float]] = {}
    for id, pid, due_ms, started_ns in traces:
        if started_ns < due_ms * 1_000_000:
            yield f"Message {id} ran {due_ms - started_ns / 1e6:.1f} ms early"
        if pid not in frozen and pid not in killed:
            starts.setdefault(id, []).append(started_ns / 1e9)
    for id, each in starts.items():
        for earlier, later in pairwise(sorted(each)):
            if later - earlier < LEAST_GAP_S:
                yield f"Message {id} ran again after {later - earlier:.3f} s"
    by_frozen = Counter(id for id, pid, *_ in traces if pid in frozen)
    yield from (f"Message {id} ran {count} times in the frozen worker" for id, count in by_frozen.items() if count > 1)
    by_killed = Counter(pid for id, pid, *_ in traces if pid in killed and id in starts)
    yield from (
        f"{count} messages of the killed process {pid} ran again" for pid, count in by_killed.items() if count > 1
    )


def _traces(site: Site) -> Path:
    return Path(f"{site.line.path}.traces")
