"""Measure a contender. Each function gets one that makes a fresh stage, and returns figures by name."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import quantiles

from benchmarks.compare.stage import Stage, Worker

Figures = dict[str, float]
Fresh = Callable[[], Stage]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of each measure. `patience_s` is how long a message may take to run again after a crash."""

    sent: int = 2_000
    bulk: int = 20_000
    drained: int = 50_000
    paced_s: float = 6
    per_s: float = 50
    waiting: int = 20_000
    held: int = 200
    patience_s: float = 120

    def scaled(self, scale: float) -> "Sizes":
        """Return these sizes times `scale`, but for the pace."""
        return Sizes(
            sent=max(round(self.sent * scale), 20),
            bulk=max(round(self.bulk * scale), 100),
            drained=max(round(self.drained * scale), 100),
            paced_s=max(self.paced_s * scale, 1),
            per_s=self.per_s,
            waiting=max(round(self.waiting * scale), 100),
            held=max(round(self.held * scale), 20),
            patience_s=self.patience_s,
        )


START_S = 60
DRAIN_S = 10.0
"""After so many seconds a drain is timed by what has run until then."""
WAITING_S = 3_600
SAMPLE_S, STEADY_S, MEMORY_S = 0.5, 4, 60
MIB = 1 << 20


def send(fresh: Fresh, sizes: Sizes) -> Figures:
    """Time messages that are sent one at a time."""
    return {"per_s": sizes.sent / fresh().drive("one", sizes.sent)}


def bulk(fresh: Fresh, sizes: Sizes) -> Figures:
    """Time messages that are sent in bulk."""
    return {"per_s": sizes.bulk / fresh().drive("many", sizes.bulk, 0)}


def drain(fresh: Fresh, sizes: Sizes) -> Figures:
    """Time a worker from the first handler that starts to the last."""
    stage = fresh()
    count = max(round(sizes.drained * stage.contender.share), 500)
    stage.drive("many", count, 0)
    stage.settle_tables()
    with stage.worker() as worker:
        started = worker.wait_until(lambda: stage.count_runs() > 0, "a message runs", START_S)
        already = stage.count_runs()
        with suppress(TimeoutError):
            worker.wait_until(lambda: stage.count_runs() >= count, "all messages run", DRAIN_S)
        ended, ran = time.monotonic(), stage.count_runs()
    return {"per_s": (ran - already) / (ended - started)}


def lateness(fresh: Fresh, sizes: Sizes) -> Figures:
    """Return how late delayed messages start that come in at a steady pace, and how many start early."""
    stage = fresh()
    count = int(sizes.paced_s * sizes.per_s)
    with stage.worker() as worker:
        _wait_until_up(stage, worker)
        stage.drive("pace", sizes.paced_s, sizes.per_s)
        worker.wait_until(lambda: stage.count_runs() >= count + 1, "all messages run", sizes.patience_s)
    late = [float(now) - float(due) for due, now in (line for line in stage.lines() if len(line) == 2)]
    percentiles = quantiles(late, n=100)
    return {"p50_ms": percentiles[49], "p99_ms": percentiles[98], "early": sum(each < 0 for each in late)}


def memory(fresh: Fresh, sizes: Sizes) -> Figures:
    """Return what messages that wait for an hour take: of the servers, and of a worker beyond an idle one."""
    with fresh().worker(WAITING_S) as worker:
        idle = _steady_bytes(worker)
    stage = fresh()
    before = stage.server_bytes()
    stage.drive("many", sizes.waiting, WAITING_S, longest_delay_s=WAITING_S)
    held = stage.server_bytes() - before
    with stage.worker(WAITING_S) as worker:
        busy = _steady_bytes(worker)
    return {"server_bytes": held / sizes.waiting, "worker_mib": (busy - idle) / MIB, "idle_mib": idle / MIB}


def kill(fresh: Fresh, sizes: Sizes) -> Figures:
    """Kill a worker in the middle of its work, and start another at once.

    Return how many messages never ended, how many ended more than once, and the seconds until the last had ended. What
    had started and not ended is started again, which is no fault.
    """
    stage = fresh()
    with stage.worker() as worker:
        _wait_until_up(stage, worker)
        stage.drive("holds", sizes.held)
        worker.wait_until(lambda: _is_amid(stage, sizes.held / 4), "a quarter has ended, and some run", START_S)
        worker.kill()
        killed = time.time() * 1000
    with stage.worker() as worker, suppress(TimeoutError):
        worker.wait_until(lambda: len(_ends(stage)) >= sizes.held, "all have ended", sizes.patience_s, 0.1)
        time.sleep(1)  # whatever runs twice may end a little later
    ends = _ends(stage)
    lost = sizes.held - len(ends)
    figures: Figures = {"lost": lost, "doubled": sum(len(times) > 1 for times in ends.values())}
    return figures if lost else {**figures, "again_s": (max(min(times) for times in ends.values()) - killed) / 1000}


MEASURES: dict[str, Callable[[Fresh, Sizes], Figures]] = {
    measure.__name__: measure for measure in (send, bulk, drain, lateness, memory, kill)
}


def _wait_until_up(stage: Stage, worker: Worker) -> None:
    """Wait until a worker has run a message."""
    before = stage.count_runs()
    stage.drive("many", 1, 0)
    worker.wait_until(lambda: stage.count_runs() > before, "the worker runs a first message", START_S)


def _is_amid(stage: Stage, least: float) -> bool:
    """Return whether so many messages have ended, and another has started."""
    lines = Counter(line[0] for line in stage.lines())
    return lines["end"] >= least and lines["start"] > lines["end"]


def _ends(stage: Stage) -> dict[str, list[float]]:
    """Return when each message ended, by its number."""
    ends: dict[str, list[float]] = {}
    for line in stage.lines():
        if line[0] == "end":
            ends.setdefault(line[1], []).append(float(line[2]))
    return ends


def _steady_bytes(worker: Worker) -> int:
    """Return the memory of a worker once it has not grown by a hundredth for `STEADY_S`."""
    most, since = 0, time.monotonic()
    give_up_at = since + MEMORY_S
    while time.monotonic() < min(since + STEADY_S, give_up_at):
        time.sleep(SAMPLE_S)
        now = worker.resident_bytes()
        if now > most * 1.01:
            most, since = now, time.monotonic()
    return most
