"""Export the figures of `django_delayq.monitor` to Prometheus. It needs the extra `metrics`.

Nothing else is counted: each scrape looks once at every alias, in bounded time.
"""

from collections.abc import Iterable, Iterator

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from django_delayq.conf import alias_names
from django_delayq.core.errors import DelayqError
from django_delayq.monitor import Status, closed_after, status

PATIENCE_S = 1.0
"""How many seconds a scrape waits for each broker."""

_IN_PART = {"error": "buried", "errors_last_hour": "buried_last_hour", "retried": "retried", "waiting": "waiting"}
"""The figures that may be counted in part, and their names here."""

_SET = ("alias", "queue", "key")
_SPAN = ("alias", "span")

_GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "up": ("Whether the figures could be had", ("alias",)),
    "broker_up": ("Whether the broker answers", ("alias",)),
    "workers": ("Workers alive", ("alias",)),
    "running": ("Messages that a worker holds", ("alias",)),
    "suspects": ("Messages that wait to run alone, since workers died while they ran them", ("alias",)),
    "retried": ("Messages that wait or run after a failure; only with a store", ("alias",)),
    "buried": ("Messages in error", ("alias",)),
    "buried_last_hour": ("Messages that were buried in the last hour", ("alias",)),
    "in_part": ("1 where a figure tells a part: there may be more", ("alias", "figure")),
    "clock_skew_seconds": ("How far the clock that decides is ahead of this machine's", ("alias",)),
    "broker_skew_seconds": ("How far the broker's clock is ahead of the database's; only with a store", ("alias",)),
    "pending": ("Messages that are not due yet", _SET),
    "ready": ("Messages that are due and held by nobody", _SET),
    "lag_seconds": ("How late the oldest ready message is", _SET),
    "parked": ("1 where no live worker asks for what waits", _SET),
    "capped": ("1 where there may be more pending or ready messages than were counted", _SET),
    "paused": ("1 where workers start nothing of what waits", _SET),
    "finished": ("Messages that finished in the span up to now; only with a store", _SPAN),
    "busiest_per_second": ("The highest rate of ten seconds of the span; only with a store", _SPAN),
    "lateness_seconds": ("How late messages of the span had started; only with a store", (*_SPAN, "quantile")),
    "drain_seconds": ("How long what is due until the full hour of UTC takes; only with a store", ("alias",)),
}


class DelayqCollector(Collector):
    """Gauges `delayq_…` for each alias, and without a store the counter `delayq_moves_total`.

    An alias whose figures can't be read now has only `delayq_up 0`.
    """

    def collect(self) -> Iterable[Metric]:
        gauges, moves = _families()
        for alias in alias_names():
            try:
                with closed_after(alias):  # a server of prometheus-client has a thread for each scrape
                    seen = status(alias, patience_s=PATIENCE_S)
            except (DelayqError, DatabaseError):
                gauges["up"].add_metric([alias], 0)
                continue
            for name, labels, value in _samples(seen):
                gauges[name].add_metric([alias, *labels], value)
            for move, total in seen.totals.items():
                moves.add_metric([alias, move], total)
        return [*gauges.values(), moves]

    def describe(self) -> Iterable[Metric]:
        """Return the names alone, so that registering asks no broker."""
        gauges, moves = _families()
        return [*gauges.values(), moves]


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer a scrape, with the metrics of this app only.

    They name queues, keys and aliases: let only Prometheus reach this view.
    """
    registry = CollectorRegistry()
    registry.register(DelayqCollector())
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry), content_type=content_type)


def _families() -> tuple[dict[str, GaugeMetricFamily], CounterMetricFamily]:
    gauges = {
        name: GaugeMetricFamily(f"delayq_{name}", f"{help}.", labels=labels) for name, (help, labels) in _GAUGES.items()
    }
    return gauges, CounterMetricFamily("delayq_moves", "Messages by move, over all time.", labels=("alias", "move"))


def _samples(seen: Status) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield gauges, their labels beside the alias, and their values."""
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
    yield from _of_a_store(seen)


def _of_a_store(seen: Status) -> Iterator[tuple[str, tuple[str, ...], float]]:
    if seen.retried is not None:
        yield "retried", (), seen.retried
    if seen.broker_skew_ms is not None:
        yield "broker_skew_seconds", (), seen.broker_skew_ms / 1000
    for span, throughput in (("hour", seen.last_hour), ("day", seen.last_day)):
        if throughput is None:
            continue
        yield "finished", (span,), throughput.finished
        yield "busiest_per_second", (span,), throughput.busiest_per_s
        if throughput.lateness is not None:
            late = throughput.lateness
            for quantile, late_ms in (("0.5", late.p50), ("0.95", late.p95), ("0.99", late.p99)):
                yield "lateness_seconds", (span, quantile), late_ms / 1000
    if seen.forecast and seen.forecast[0].drain.ms is not None:
        yield "drain_seconds", (), seen.forecast[0].drain.ms / 1000
        yield "in_part", ("drain_seconds",), seen.forecast[0].drain.at_least
