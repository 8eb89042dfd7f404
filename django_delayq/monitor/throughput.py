"""Measure what workers did lately, from the rows of figures that they wrote: nothing is sampled.

The last minute is not known yet, because workers write when it is over.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from django_delayq.core.figures import MINUTE_MS, Figures, Quantiles
from django_delayq.core.requests import Pair
from django_delayq.store import figures as rows
from django_delayq.store.database import Database
from django_delayq.store.figures import Span
from django_delayq.support.timestamps import DAY_MS, HOUR_MS


def last_hour(now_ms: int) -> Span:
    """Return the current minute and the 59 before it."""
    return _span(now_ms, 60, MINUTE_MS, MINUTE_MS)


def last_day(now_ms: int) -> Span:
    """Return the current hour and the 23 before it."""
    return _span(now_ms, 24, HOUR_MS, HOUR_MS)


def last_month(now_ms: int) -> Span:
    """Return the 30 days up to the end of the current hour, which are kept by the hour."""
    return _span(now_ms, 30, DAY_MS, HOUR_MS)


@dataclass(frozen=True, slots=True)
class Throughput:
    """What workers did in the `span_ms` up to now.

    `parts` are the numbers of messages that finished in equal parts of the span of `part_ms`, oldest first; the last
    part is not over.
    """

    span_ms: int
    figures: Figures
    part_ms: int
    parts: tuple[int, ...]

    @property
    def finished(self) -> int:
        """Return how many messages finished."""
        return self.figures.finished

    @property
    def per_s(self) -> float:
        """Return the mean rate per second."""
        return self.finished * 1000 / self.span_ms

    @property
    def busiest_per_s(self) -> float:
        """Return the rate per second of the busiest part."""
        return max(self.parts) * 1000 / self.part_ms

    @property
    def lateness(self) -> Quantiles | None:
        """Return how late attempts started; None if none did."""
        return self.figures.lateness.quantiles

    @property
    def run_times(self) -> Quantiles | None:
        """Return how long attempts ran; None if none did."""
        return self.figures.run_times.quantiles


@dataclass(frozen=True, slots=True)
class Measured:
    """What workers did in some spans, and by queue and key in the last of them and in all time."""

    spans: Sequence[Throughput]
    by_pair: Mapping[Pair, Figures]
    ever: Mapping[Pair, Figures]


def measure(database: Database, now_ms: int, spans: Sequence[Span]) -> Measured:
    """Return what workers did in the spans up to `now_ms`, by one statement."""
    found = rows.read(database, spans)
    of_spans = zip(spans, found.spans, found.parts, strict=True)
    return Measured([_throughput(now_ms, *each) for each in of_spans], found.by_pair, found.ever)


def mean_run_times_ms(measured: Measured, pairs: Iterable[Pair]) -> dict[str, float]:
    """Return the mean time that messages of each key ran in these queues, all attempts together, in ms.

    It is that of the last span, or where nothing ran in it, of all time. A key of which nothing ever ran has none.
    """
    of_keys: dict[str, list[Figures]] = {}
    for pair in pairs:
        for known in (measured.by_pair, measured.ever):
            if pair in known and known[pair].attempts:
                of_keys.setdefault(pair[1], []).append(known[pair])
                break
    sums = {key: Figures.sum(each) for key, each in of_keys.items()}
    return {key: each.run_times.total_ms / (each.ended or each.attempts) for key, each in sums.items()}


def _span(now_ms: int, parts: int, part_ms: int, whole_ms: int) -> Span:
    ends_ms = now_ms - now_ms % whole_ms + whole_ms
    return Span(ends_ms - parts * part_ms, part_ms, parts)


def _throughput(now_ms: int, span: Span, figures: Figures, parts: Mapping[int, int]) -> Throughput:
    numbers = tuple(parts.get(part, 0) for part in range(span.parts))
    return Throughput(now_ms - span.starts_ms, figures, span.part_ms, numbers)
