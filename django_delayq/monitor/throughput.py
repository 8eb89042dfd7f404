"""Measure how much finished lately, how late it started, and how long it ran.

Messages are counted where that is quick, else sampled.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from django_delayq.store import run_times, throughput as measured
from django_delayq.store.database import Database
from django_delayq.store.statistics import Pair
from django_delayq.store.throughput import BURST_MS, MINUTE_MS, Finished, Minute, Sample

MOST_COUNTED = 10_000
"""The most messages that are counted, the latest. What finished before them is estimated from windows of time."""
WINDOWS = 60
MOST_OF_A_WINDOW = 50
"""The most messages in a window whose lateness is read."""
MOST_SAMPLED = 2_000
"""The most messages among the counted ones whose lateness is read; roughly."""
PARTS = 60
"""The parts that a span is shown in, each of whole minutes."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long after their due times messages started, in ms.

    Half of them started within `p50`, 95 % within `p95`, and 99 % within `p99`.
    """

    p50: int
    p95: int
    p99: int


@dataclass(frozen=True, slots=True)
class Throughput:
    """The messages that finished in the `span_ms` up to now.

    `parts` are their numbers in equal parts of the span, oldest first. `busiest_per_s` is the highest rate of
    the steps of ten seconds back from now. `lateness` is None if nothing finished. The figures are `estimated` if
    counting would take long.
    """

    span_ms: int
    finished: int
    busiest_per_s: float
    lateness: Lateness | None
    parts: tuple[int, ...]
    estimated: bool = False

    @property
    def per_s(self) -> float:
        """Return the mean rate per second."""
        return self.finished * 1000 / self.span_ms


Window = tuple[int, int, float]
"""Its start (excluded), its end (included), and the length of time that it stands for, all in ms."""


def measure(
    database: Database, now_ms: int, spans_ms: Sequence[int], pairs: Sequence[Pair]
) -> tuple[list[Throughput], dict[str, float]]:
    """Return what finished in each of the spans up to `now_ms`, and the recent mean run time of each key in ms.

    Spans are whole hours. It takes two statements.
    """
    newest, ran_of_last = measured.finished(database, now_ms, max(spans_ms), MOST_COUNTED + 1)
    rare = run_times.rare(ran_of_last, pairs)
    windows = windows_before(newest.after_ms, [now_ms - span_ms for span_ms in spans_ms], Random(now_ms))
    stepped = [(max(newest.after_ms, now_ms - span_ms), now_ms, _step(newest, span_ms)) for span_ms in spans_ms]
    some, of_windows, ran_of_rare = measured.samples(
        database, stepped, [(after, until) for after, until, _ in windows], MOST_OF_A_WINDOW, rare
    )
    sampled = list(zip(windows, of_windows, strict=True))
    spans = [
        throughput(now_ms, span_ms, newest, late.late_ms, [one for one in sampled if one[0][0] >= now_ms - span_ms])
        for span_ms, late in zip(spans_ms, some, strict=True)
    ]
    return spans, run_times.means_ms(ran_of_last | ran_of_rare, pairs)


def throughput(
    now_ms: int, span_ms: int, newest: Finished, late_ms: Sequence[int], sampled: Sequence[tuple[Window, Sample]]
) -> Throughput:
    """Put the figures of a span together from counted messages and samples.

    `late_ms` is how late some of the counted ones started. `sampled` are windows of the time before them.
    """
    minutes = _within(newest, span_ms)
    counted = sum(minute.finished for minute in minutes.values())
    parts = [0.0] * PARTS
    late = _weighted(late_ms, counted)
    bursts = [minute.most_together for minute in minutes.values()]
    for ago, minute in minutes.items():
        parts[_part(ago, span_ms)] += minute.finished
    for (after_ms, until_ms, while_ms), sample in sampled:
        number = sample.finished * while_ms / (until_ms - after_ms)
        parts[_part((now_ms - until_ms) // MINUTE_MS, span_ms)] += number
        late += _weighted(sample.late_ms, number)
        bursts.append(sample.finished)
    return Throughput(
        span_ms,
        round(sum(parts)),
        max(bursts, default=0) * 1000 / BURST_MS,
        lateness(late),
        tuple(round(part) for part in parts),
        estimated=bool(sampled),
    )


def windows_before(until_ms: int, starts_ms: Sequence[int], pick: Random) -> list[Window]:
    """Choose random windows of time before `until_ms`.

    There are `WINDOWS` of them in each stretch between `until_ms` and the starts before it, one in each equal part. A
    window is as long as a burst. Its moment is random because messages may follow a timetable.
    """
    windows = []
    for start_ms in sorted((start_ms for start_ms in starts_ms if start_ms < until_ms), reverse=True):
        part_ms = (until_ms - start_ms) / WINDOWS
        width_ms = min(BURST_MS, math.ceil(part_ms))
        for part in range(WINDOWS):
            after_ms = int(start_ms + part * part_ms + pick.random() * max(part_ms - width_ms, 0))
            windows.append((after_ms, after_ms + width_ms, part_ms))
        until_ms = start_ms
    return windows


def lateness(late: Iterable[tuple[int, float]]) -> Lateness | None:
    """Return the quantiles of pairs of a lateness and the number of messages that it stands for."""
    in_order = sorted(late)
    if not in_order:
        return None
    up_to = list(accumulate(number for _, number in in_order))
    p50, p95, p99 = (in_order[bisect_left(up_to, up_to[-1] * share)][0] for share in (0.5, 0.95, 0.99))
    return Lateness(max(p50, 0), max(p95, 0), max(p99, 0))


def _within(newest: Finished, span_ms: int) -> dict[int, Minute]:
    return {ago: minute for ago, minute in newest.minutes.items() if ago < span_ms // MINUTE_MS}


def _step(newest: Finished, span_ms: int) -> int:
    counted = sum(minute.finished for minute in _within(newest, span_ms).values())
    return max(math.ceil(counted / MOST_SAMPLED), 1)


def _part(minutes_ago: int, span_ms: int) -> int:
    return max(PARTS - 1 - minutes_ago * PARTS * MINUTE_MS // span_ms, 0)


def _weighted(late_ms: Sequence[int], number: float) -> list[tuple[int, float]]:
    return [(each, number / len(late_ms)) for each in late_ms]
