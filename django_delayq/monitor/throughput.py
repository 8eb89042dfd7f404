"""Measure the recent work of workers from the rows of figures that they wrote: nothing is sampled.

The current minute is not known yet, because workers write its figures when it is over.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from django_delayq.core.figures import MINUTE_MS, Figures, Quantiles
from django_delayq.core.requests import Pair
from django_delayq.store import figures as rows
from django_delayq.store.database import Database
from django_delayq.store.figures import Asked, Found, Period
from django_delayq.support.timestamps import DAY_MS, HOUR_MS


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time in equal parts, and the period of the rows to read for it."""

    starts_ms: int
    part_ms: int
    parts: int
    period: Period


def last_hour(now_ms: int) -> Span:
    """Return the span of the current minute and the 59 before it."""
    return _span(now_ms, 60, MINUTE_MS, Period.MINUTE)


def last_day(now_ms: int) -> Span:
    """Return the span of the current hour and the 23 before it."""
    return _span(now_ms, 24, HOUR_MS, Period.HOUR)


def last_month(now_ms: int) -> Span:
    """Return the span of the current day of UTC and the 29 before it."""
    return _span(now_ms, 30, DAY_MS, Period.DAY)


def _span(now_ms: int, parts: int, part_ms: int, period: Period) -> Span:
    return Span(now_ms - now_ms % part_ms - (parts - 1) * part_ms, part_ms, parts, period)


@dataclass(frozen=True, slots=True)
class Throughput:
    """The work of all workers in the `span_ms` up to now.

    The span is divided into equal parts of `part_ms`; the last one is not over. `parts` has how many messages finished
    in each, oldest first, and `failed_parts` how many attempts failed.
    """

    span_ms: int
    figures: Figures
    part_ms: int
    parts: tuple[int, ...]
    failed_parts: tuple[int, ...]

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
        """Return how late attempts started; None if no attempt started."""
        return self.figures.lateness.quantiles


@dataclass(frozen=True, slots=True)
class Measured:
    """The work of all workers in each of `spans`, and per queue and key in the last span and over all time (`ever`)."""

    spans: Sequence[Throughput]
    by_pair: Mapping[Pair, Figures]
    ever: Mapping[Pair, Figures]


def measure(database: Database, now_ms: int, spans: Sequence[Span]) -> Measured:
    """Measure the work of all workers in the spans up to `now_ms`, with one statement."""
    of_spans = [Asked(span.period, span.starts_ms, span.part_ms) for span in spans]
    of_pairs = Asked(spans[-1].period, spans[-1].starts_ms), Asked(Period.TOTAL, 0)
    *found, by_pair, ever = rows.read(database, [*of_spans, *of_pairs])
    throughputs = [_throughput(now_ms, span, each) for span, each in zip(spans, found, strict=True)]
    return Measured(throughputs, _by_pair(by_pair), _by_pair(ever))


def mean_run_times_ms(measured: Measured, keys: Collection[str]) -> dict[str, float]:
    """Return for each of `keys` how long a message runs on average, in ms, all of its attempts together.

    A key counts with what ran in the last span, in whatever queue and priority, or with all time if nothing of it did.
    It is left out if none of its messages has ever run.
    """
    sums: dict[str, Figures] = {}
    for known in (measured.ever, measured.by_pair):
        of_keys: dict[str, list[Figures]] = {}
        for (_, key), figures in known.items():
            if key in keys and figures.attempts:
                of_keys.setdefault(key, []).append(figures)
        sums |= {key: Figures.sum(each) for key, each in of_keys.items()}
    return {key: each.run_times.total_ms / (each.ended or each.attempts) for key, each in sums.items()}


def _by_pair(found: Found) -> dict[Pair, Figures]:
    return {pair: figures for _, pair, figures in found}


def _throughput(now_ms: int, span: Span, found: Found) -> Throughput:
    parts = {at_ms: figures for at_ms, _, figures in found}
    starts_ms = range(span.starts_ms, span.starts_ms + span.parts * span.part_ms, span.part_ms)
    in_order = [parts.get(at_ms) for at_ms in starts_ms]
    finished = tuple(part.finished if part else 0 for part in in_order)
    failed = tuple(part.failed if part else 0 for part in in_order)
    return Throughput(now_ms - span.starts_ms, Figures.sum(parts.values()), span.part_ms, finished, failed)
