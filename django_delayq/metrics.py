"""Export the figures of `django_delayq.monitor` to Prometheus. It needs the extra `metrics`.

Nothing is counted here. A scrape reads the figures of every alias, at most once in some seconds, in bounded time.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from django_delayq.conf import alias_names
from django_delayq.core.errors import DelayqError
from django_delayq.core.figures import BOUNDS_MS, OTHERS, Times
from django_delayq.monitor import Status, kept_status
from django_delayq.store.statistics import AHEAD_MS
from django_delayq.support.units import to_text

_IN_PART = {"error": "buried", "errors_last_hour": "buried_last_hour", "retried": "retried", "waiting": "waiting"}
"""The figures of `Status` that may be counted only in part, and their names in the label `figure` of `in_part`."""

_SET = ("alias", "queue", "key")

_GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "up": ("Whether the figures could be had", ("alias",)),
    "broker_up": ("Whether the broker answers", ("alias",)),
    "workers": ("Workers alive", ("alias",)),
    "running": ("Messages that a worker holds", ("alias",)),
    "suspects": ("Messages that wait to run alone, because workers died while they ran them", ("alias",)),
    "retried": ("Messages that wait or run after a failure; only with a store", ("alias",)),
    "buried": ("Messages that failed for good", ("alias",)),
    "buried_last_hour": ("Messages that failed for good in the last hour", ("alias",)),
    "in_part": ("1 where a figure tells a part: there may be more", ("alias", "figure")),
    "clock_skew_seconds": ("How far the authoritative clock is ahead of this machine's", ("alias",)),
    "broker_skew_seconds": ("How far the broker's clock is ahead of the database's; only with a store", ("alias",)),
    "pending": ("Messages that are not due yet", _SET),
    "ready": ("Messages that are due and held by nobody", _SET),
    "lag_seconds": ("How late the oldest ready message is", _SET),
    "parked": ("1 where no live worker asks for what waits", _SET),
    "capped": ("1 where there may be more pending or ready messages than were counted", _SET),
    "paused": ("1 where workers start nothing of what waits", _SET),
    "workers_needed": (
        "Workers that run in this time what is due or falls due in it; only with a store. For a large backlog it is an"
        " estimate on PostgreSQL, and a lower bound elsewhere (see in_part)",
        ("alias", "ahead"),
    ),
    "drain_seconds": ("How long what is due until the full hour of UTC takes; only with a store", ("alias",)),
}

_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "moves": ("Messages by move, over all time", ("alias", "move")),
    "attempts": ("Attempts that started; only with a store", _SET),
    "finished": ("Messages that finished; only with a store", _SET),
    "failed": ("Attempts that failed; only with a store", _SET),
}
_HISTOGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "run_seconds": ("How long attempts ran; only with a store", _SET),
    "lateness_seconds": ("How late attempts started; only with a store", _SET),
}


class DelayqCollector(Collector):
    """Gauges `delayq_…` for each alias, and counters and histograms of the attempts that workers made.

    An alias whose figures can't be read now has only `delayq_up 0`. An alias without a store has only one counter,
    `delayq_moves_total`, and no histogram.

    With a store, the other counters and the histograms are by queue and key. They are sums of the rows that workers
    write each minute, so any process may be scraped, and workers may come and go. They do not fall when rows are rolled
    up: the transaction that removes a row adds it to the total of its queue and key, and one statement reads rows and
    totals. Once nothing of a queue and key has ended for 30 days, their total is removed. If that pair is used again,
    its counters begin at 0, which a scraper takes for a restart. At most 200 pairs have counters of their own; the
    others are counted together under empty names.
    """

    def collect(self) -> Iterable[Metric]:
        families = _families()
        for alias in alias_names():
            try:
                seen = kept_status(alias)
            except (DelayqError, DatabaseError):
                families["up"].add_metric([alias], 0)
                continue
            for name, labels, value in _samples(seen):
                families[name].add_metric([alias, *labels], value)
            for pair, figures in seen.ever.items():
                for name, times in (("run_seconds", figures.run_times), ("lateness_seconds", figures.lateness)):
                    families[name].add_metric([alias, *pair], *_histogram(times))
        return families.values()

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values, so that registering the collector asks no broker."""
        return _families().values()


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer a scrape with the metrics of this app only.

    They name queues, keys and aliases, so let only Prometheus see this view: put `token_required` around it.
    """
    registry = CollectorRegistry()
    registry.register(DelayqCollector())
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry), content_type=content_type)


def _families() -> dict[str, Any]:
    kinds = {GaugeMetricFamily: _GAUGES, CounterMetricFamily: _COUNTERS, HistogramMetricFamily: _HISTOGRAMS}
    return {
        name: kind(f"delayq_{name}", f"{help}.", labels=labels)
        for kind, families in kinds.items()
        for name, (help, labels) in families.items()
    }


def _histogram(times: Times) -> tuple[list[tuple[str, float]], float]:
    """Return each bound in seconds with the number of times up to it, and the sum of all times in seconds."""
    bounds = (*(str(bound_ms / 1000) for bound_ms in BOUNDS_MS), "+Inf")
    return list(zip(bounds, accumulate(times.buckets), strict=True)), times.total_ms / 1000


def _samples(seen: Status) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield the name, the labels after the alias, and the value of each gauge and counter."""
    yield "up", (), 1
    yield "broker_up", (), not seen.broker_away
    yield "running", (), seen.running
    yield "suspects", (), seen.suspects
    yield "buried", (), seen.error
    yield "buried_last_hour", (), seen.errors_last_hour
    for name, figure in _IN_PART.items():
        yield "in_part", (figure,), name in seen.in_part
    if not seen.broker_away:
        yield "workers", (), len(seen.workers)
    yield "clock_skew_seconds", (), seen.clock_skew_ms / 1000
    for each in seen.waiting:
        of = (each.queue, each.key)
        yield "pending", of, each.pending
        yield "ready", of, each.ready
        yield "lag_seconds", of, each.lag_ms / 1000
        yield "capped", of, each.capped
        yield "parked", of, each.parked
        yield "paused", of, each.paused
    for move, total in seen.totals.items():
        yield "moves", (move,), total
    for pair, figures in seen.ever.items():
        for name in ("attempts", "finished", "failed"):
            yield name, pair, getattr(figures, name)
    yield from _store_samples(seen)


def _store_samples(seen: Status) -> Iterator[tuple[str, tuple[str, ...], float]]:
    if seen.retried is not None:
        yield "retried", (), seen.retried
    if seen.broker_skew_ms is not None:
        yield "broker_skew_seconds", (), seen.broker_skew_ms / 1000
    if seen.stored:
        yield "in_part", ("attempts",), OTHERS in seen.ever
    if seen.forecast and seen.forecast[0].drain.ms is not None:
        yield "drain_seconds", (), seen.forecast[0].drain.ms / 1000
        yield "in_part", ("drain_seconds",), seen.forecast[0].drain.at_least
    if seen.need.workers is not None:
        yield "workers_needed", (to_text(AHEAD_MS),), seen.need.workers
        yield "in_part", ("workers_needed",), seen.need.at_least
