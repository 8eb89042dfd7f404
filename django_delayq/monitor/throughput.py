"""How much was done of late, and how late it started: counted where that is quick, else estimated from samples."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from random import Random

from django_delayq.store import figures
from django_delayq.store.database import Database

MOST_COUNTED = 3_000
"""So many messages are counted one by one. Of more, about as many are read, at random moments of each part."""
PARTS = 60
"""A span is shown, and sampled, in so many parts."""
MOST_SAMPLED = 4 * MOST_COUNTED // PARTS
"""Of one part."""
BURST_MS = 10_000
"""The busiest stretch of a span is as long as this."""

Ended = Sequence[tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long after their due time messages started, in ms: half of them within `p50`, …"""

    p50: int
    p95: int
    p99: int


@dataclass(frozen=True, slots=True)
class Throughput:
    """The messages that finished in the `span_ms` up to now.

    `parts` are their numbers in equal parts of the span, oldest first. `busiest_per_s` is the highest rate of any ten
    seconds: what the workers are known to manage. `lateness` is None when nothing finished. All are `estimated` where
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
        """The mean rate."""
        return self.finished * 1000 / self.span_ms


def measure(database: Database, now_ms: int, spans_ms: Sequence[int]) -> list[Throughput]:
    """What finished in each of the spans up to `now_ms`, in two statements at most."""
    (newest,) = figures.finished(database, [(now_ms - max(spans_ms), now_ms)], MOST_COUNTED + 1)
    width_ms = (now_ms - newest.after_ms) / PARTS
    windows = {
        span_ms: windows_of(now_ms, span_ms, width_ms) for span_ms in spans_ms if newest.after_ms > now_ms - span_ms
    }
    samples = iter(figures.finished(database, list(chain.from_iterable(windows.values())), MOST_SAMPLED))
    return [
        estimated(list(islice(samples, PARTS)), windows[span_ms], span_ms)
        if span_ms in windows
        else counted([one for one in newest.messages if one[0] > now_ms - span_ms], now_ms, span_ms)
        for span_ms in spans_ms
    ]


def counted(ended: Ended, now_ms: int, span_ms: int) -> Throughput:
    """From all that finished."""
    start_ms = now_ms - span_ms
    parts = Counter(min(max((at_ms - start_ms) * PARTS // span_ms, 0), PARTS - 1) for at_ms, _ in ended)
    return Throughput(
        span_ms,
        len(ended),
        _most_together([at_ms for at_ms, _ in ended]) * 1000 / BURST_MS,
        _lateness(ended),
        tuple(parts[part] for part in range(PARTS)),
    )


def _most_together(ended_ms: Sequence[int]) -> int:
    """How many of these moments lie within `BURST_MS`, wherever it begins: the same at each look."""
    in_order = sorted(ended_ms)
    together = (place - bisect_right(in_order, at_ms - BURST_MS) for place, at_ms in enumerate(in_order, start=1))
    return max(together, default=0)


def windows_of(now_ms: int, span_ms: int, width_ms: float) -> list[tuple[int, int]]:
    """A window (after, up to) in each part, all as wide, at a moment that no timetable of messages can share."""
    part_ms = span_ms / PARTS
    width = math.ceil(min(max(width_ms, 1), part_ms))
    pick = Random(now_ms)
    starts = (now_ms - span_ms + part * part_ms + pick.random() * (part_ms - width) for part in range(PARTS))
    return [(int(start), int(start) + width) for start in starts]


def estimated(samples: Sequence[figures.Finished], windows: Sequence[tuple[int, int]], span_ms: int) -> Throughput:
    """From what finished in a window of each part."""
    per_ms = [
        len(sample.messages) / (until_ms - sample.after_ms)
        for sample, (_, until_ms) in zip(samples, windows, strict=True)
    ]
    parts = tuple(round(rate * span_ms / PARTS) for rate in per_ms)
    everything = [one for sample in samples for one in sample.messages]
    return Throughput(span_ms, sum(parts), max(per_ms) * 1000, _lateness(everything), parts, estimated=True)


def _lateness(ended: Ended) -> Lateness | None:
    late = sorted(late_ms for _, late_ms in ended if late_ms is not None)
    if not late:
        return None
    p50, p95, p99 = (late[math.ceil(len(late) * share) - 1] for share in (0.5, 0.95, 0.99))
    return Lateness(max(p50, 0), max(p95, 0), max(p99, 0))
