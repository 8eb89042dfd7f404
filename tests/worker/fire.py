"""A fire: many workers over many shards, of which two are killed, one is frozen and one joins, amid a load.

Where a worker is several processes under a supervisor, the second to be killed loses these alone, and those of another
are frozen for a while. And the account of it: each message ran once, or again only where a lease had run out or the
process that ran it was killed. `make soak` has more of it.
"""

import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import psutil

from django_delayq.brokers.base import BATCH, Header, NewMessage, pages
from django_delayq.brokers.database import DatabaseBroker
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias, Store
from django_delayq.store import DatabaseBackend
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


class Trace(NamedTuple):
    """A start of a message: in which process, and when it was due and started, in seconds."""

    id: int
    pid: int
    due_at: float
    started_at: float


class Executor(NamedTuple):
    """What a worker runs its handlers with, and what it may say when one ends after its lease."""

    options: Sequence[str]
    late: Sequence[str]


THREADS = Executor(("--threads", "2"), ["overrun"])
PROCESSES = Executor(("--processes", "2"), ["overrun", "the process that ran it ended"])
MIXES = {
    "threads": [THREADS] * 4,
    "processes": [PROCESSES] * 4,
    "both": [THREADS, PROCESSES, THREADS, THREADS],
}
"""The worker that is killed, the one whose processes are, the one that is frozen, and the one that comes through."""


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


def site_alone(using: str, env: Mapping[str, str], directory: Path) -> AbstractContextManager[Site]:
    """A site that has nothing but a database, with short leases."""
    name = "django_delayq.brokers.database.DatabaseBroker"
    options = {"lease": f"{LEASE_S}s"}
    alias = Alias("default", broker=name, database=using, store=Store(), options=replace(OPTIONS, lease=LEASE_S * 1000))
    broker = DatabaseBackend(alias, Store(), DatabaseBroker(alias))
    return site_with({"BROKER": name, "STORE": {}, "OPTIONS": options}, broker, env, directory)


def burn(site: Site, load: int, mix: Sequence[Executor]) -> Account:
    """All of it, with `load` messages beside those that the faults hit. Raises `AssertionError` if it stands still."""
    workers = [site.worker(*executor.options) for executor in mix]
    first, second, frozen, healthy = workers
    held = _hold(site, workers)  # each worker has one: the faults hit leases
    _send_load(site, range(load // 2))
    _until_finished(site, load // 10)
    dead = _kill(first, *([] if second.children else [second]))
    killed, stopped = dict.fromkeys(second.children, time.time()), healthy.children
    _signal_each(killed, signal.SIGKILL)
    _signal_each(stopped, signal.SIGSTOP)
    joined = site.worker(*mix[-1].options)
    joined.until_says("Queues:")
    _send_load(site, range(load // 2, load))
    _until_finished(site, load * 6 // 10)
    for pid in stopped:
        with suppress(ProcessLookupError):  # its supervisor kills one that is frozen for longer than a lease
            os.kill(pid, signal.SIGCONT)
    late = {frozen.pid, *frozen.children}
    frozen.signal_all(signal.SIGSTOP)
    for worker, call in held.items():
        if worker is not frozen:
            call.release()
    _hear_all_held(site)
    _until_finished(site, load + len(HELD))

    frozen.signal_all(signal.SIGCONT)
    held[frozen].release()
    until(lambda: any(text in frozen.text for text in mix[2].late))
    codes = [worker.stop() for worker in (frozen, healthy, joined, *([second] if killed else []))]
    return _account(site, load, wrong_runs(_traces(site), late, killed, dead), codes)


def _kill(*workers: WorkerProcess) -> dict[int, float]:
    """When each process of the workers was killed, in seconds: the others of this host take over from then on."""
    killed_at: dict[int, float] = {}
    for worker in workers:
        killed_at |= dict.fromkeys((worker.pid, *worker.children), time.time())
        worker.kill()
    return killed_at


def _hold(site: Site, workers: Sequence[WorkerProcess]) -> dict[WorkerProcess, Call]:
    """Return what each worker holds, which is as much as it can."""
    site.send(*HELD, key="grip")
    calls = [site.line.next() for _ in HELD]
    by_pid = {pid: call for call in calls for pid in (call.pid, psutil.Process(call.pid).ppid())}
    return {worker: by_pid[worker.pid] for worker in workers}


def _signal_each(pids: Iterable[int], signum: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, signum)


def _send_load(site: Site, numbers: Sequence[int]) -> None:
    """Send what is due in nearly the same moment: more than the workers run at once."""
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
    return site.broker.queue.counts().totals.get("finished", 0)


def _hear_all_held(site: Site) -> None:
    """Let what is held go on, until each has run to its end."""
    ran: set[str] = set()
    while ran < set(HELD):
        call = site.line.next()
        call.release()
        if call.what == "ran":
            ran.add(call.id)


def _account(site: Site, load: int, wrong_runs: Iterable[str], codes: Sequence[int]) -> Account:
    audit = site.broker.queue.audit()
    sent, finished = load + len(HELD), audit.totals["finished"]
    runs = Counter(trace.id for trace in _traces(site))
    wrong = [*audit.differences, *wrong_runs]
    wrong += [f"Message {id} never ran: {site.broker.queue.get(str(id))}" for id in range(load) if id not in runs]
    if finished != sent:
        wrong.append(f"{finished - sent:+} finished that were not sent, or not finished")
    if any(codes):
        wrong.append(f"The workers that were stopped exited with {codes}")
    again = sum(count > 1 for count in runs.values())
    return Account(sent, finished, again, audit.totals.get("reclaimed", 0), wrong)


def wrong_runs(
    traces: Sequence[Trace], frozen: Collection[int], killed: Mapping[int, float], dead: Mapping[int, float]
) -> Iterator[str]:
    """Yield what was early, or ran again before a lease had run out, but for what a fault allows.

    A frozen thread may be late, once for each message. What a killed child process ran, one message, runs again at
    once, and so does what a worker left that is dead: but not before its death. What the killed process ran as the
    second, because a dead worker left it, is none of its own: only what ran after it counts.
    """
    runs: dict[int, list[Trace]] = {}
    for trace in sorted(traces, key=attrgetter("started_at")):
        if trace.started_at < trace.due_at:
            yield f"Message {trace.id} ran {1000 * (trace.due_at - trace.started_at):.1f} ms early"
        runs.setdefault(trace.id, []).append(trace)
    died_at = {**dead, **killed}
    for id, each in runs.items():
        for earlier, later in pairwise(trace for trace in each if trace.pid not in frozen):
            free_at = min(earlier.started_at + LEAST_GAP_S, died_at.get(earlier.pid, math.inf))
            if later.started_at < free_at:
                yield f"Message {id} ran again after {later.started_at - earlier.started_at:.3f} s"
    by_frozen = Counter(trace.id for trace in traces if trace.pid in frozen)
    yield from (f"Message {id} ran {count} times in the frozen worker" for id, count in by_frozen.items() if count > 1)
    by_killed = Counter(trace.pid for each in runs.values() for trace in each[:-1] if trace.pid in killed)
    yield from (
        f"{count} messages of the killed process {pid} ran again" for pid, count in by_killed.items() if count > 1
    )


def _traces(site: Site) -> list[Trace]:
    lines = Path(f"{site.line.path}.traces").read_text().splitlines()
    rows = [[int(word) for word in line.split()] for line in lines]
    return [Trace(id, pid, due_ms / 1e3, started_ns / 1e9) for id, pid, due_ms, started_ns in rows]
