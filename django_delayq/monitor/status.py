"""Read the state of one alias into one frozen value, with the waiting messages by queue and key."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, tzinfo
from functools import partial

from django_delayq.api.handlers import handlers_by_key
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import (
    Backend,
    Broker,
    Counts,
    Info,
    Pause,
    ServerReport,
    SetCount,
    Tables,
    WorkerInfo,
    covering,
    is_asked_for,
)
from django_delayq.conf import DEFAULT_ALIAS, Alias
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable, ForeignMark
from django_delayq.core.figures import Figures
from django_delayq.core.requests import Pair
from django_delayq.monitor.forecast import Capacity, Hour, Need, forecast, teams_of, workers_needed
from django_delayq.monitor.looking import within
from django_delayq.monitor.throughput import Throughput, last_day, last_hour, mean_run_times_ms, measure
from django_delayq.store import backend as store_backend, mark, statistics
from django_delayq.store.database import skew, skew_warnings
from django_delayq.support.timestamps import HOUR_MS, wall_clock_ms
from django_delayq.support.translatable import text as _
from django_delayq.support.units import to_text


@dataclass(slots=True, kw_only=True)
class WaitingSet(SetCount):
    """The messages that wait for one queue and key.

    `parked` says that no live worker asks for them, `paused` that no worker starts them for now.
    """

    lag_ms: int
    parked: bool
    paused: bool

    @property
    def capped(self) -> bool:
        """Return whether more may be waiting than were counted."""
        return self.pending_capped or self.ready_capped


def waiting_sets(
    counts: Counts, workers: Sequence[WorkerInfo] | None, pauses: Sequence[Pause]
) -> tuple[WaitingSet, ...]:
    """Return the waiting messages, sorted by queue and key. If the workers are not known, no entry is marked parked."""
    ordered = sorted(counts.waiting, key=lambda count: count.pair)
    return tuple(_waiting_set(count, counts.now_ms, workers, pauses) for count in ordered)


def _waiting_set(
    count: SetCount, now_ms: int, workers: Sequence[WorkerInfo] | None, pauses: Sequence[Pause]
) -> WaitingSet:
    waits = count.pending > 0 or count.ready > 0  # otherwise all its messages run
    return WaitingSet(
        **asdict(count),
        lag_ms=0 if count.next_due_ms is None else max(now_ms - count.next_due_ms, 0),
        parked=workers is not None and waits and not is_asked_for(count.queue, count.key, workers),
        paused=bool(covering(pauses, count.queue, count.key)),
    )


_ERRORS_PAGE = 100
_MOST_ERRORS = 1_000


@dataclass(frozen=True, slots=True)
class Status:
    """Every figure of one alias at `now_ms`, by the authoritative clock. Instants are epoch milliseconds, lengths ms.

    Suspects are counted apart: they are in no entry of `waiting`, and count as neither pending nor ready.
    `clock_skew_ms` is the least by which the authoritative clock is ahead of this machine's (negative: behind);
    `broker_skew_ms` says the same of the broker's clock and the database's. `broker_away` says that the broker of a
    store does not answer, or bears another store's mark (`server.foreign`). In that case its workers are not known, and
    nothing is reported as parked.

    Large numbers are counted only in part. With a store, `capped` says that more messages may be waiting, ready or
    running than were counted, and `totals` is empty, because only the audit counts them. `in_part` names the ones of
    `error`, `errors_last_hour`, `retried` (waiting or running after a failure) and `schedules` that may be higher than
    counted, and `waiting` if there are more queues and keys.

    With a store, `by_pair` has the figures of each queue and key in the `last_day`, and `ever` has them over all time.
    `need` is how many workers are needed for what is ready or falls due soon (`statistics.AHEAD_MS`).
    `untimed` names the waiting keys of which no message is known to have run: the times of the forecast leave them out.
    Without a store, the figures that only rows give are None, as `schedules` is, and there is no forecast.
    """

    now_ms: int
    clock_skew_ms: int
    waiting: tuple[WaitingSet, ...]
    pauses: tuple[Pause, ...]
    running: int
    suspects: int
    error: int
    errors_last_hour: int
    totals: Mapping[str, int]
    workers: tuple[WorkerInfo, ...]
    server: ServerReport
    broker_away: bool = False
    broker_skew_ms: int | None = None
    retried: int | None = None
    in_part: frozenset[str] = frozenset()
    last_hour: Throughput | None = None
    last_day: Throughput | None = None
    by_pair: Mapping[Pair, Figures] = field(default_factory=dict)
    ever: Mapping[Pair, Figures] = field(default_factory=dict)
    forecast: tuple[Hour, ...] = ()
    need: Need = Need(None)  # noqa: RUF009 - it is frozen
    untimed: tuple[str, ...] = ()
    schedules: statistics.ScheduleCounts | None = None

    @property
    def stored(self) -> bool:
        """Return whether the alias has a store, whose rows may be listed and measured."""
        return self.last_hour is not None

    @property
    def pending(self) -> int:
        """Return how many messages are not due yet."""
        return sum(each.pending for each in self.waiting)

    @property
    def ready(self) -> int:
        """Return how many messages are due and held by nobody, including parked ones."""
        return sum(each.ready for each in self.waiting)

    @property
    def capped(self) -> bool:
        """Return whether more may be waiting or running than were counted."""
        return "waiting" in self.in_part or any(each.capped for each in self.waiting)

    @property
    def ready_capped(self) -> bool:
        """Return whether more may be due, ready or running, than were counted."""
        return "waiting" in self.in_part or any(each.ready_capped for each in self.waiting)

    @property
    def parked(self) -> tuple[WaitingSet, ...]:
        """Return the entries of `waiting` that no live worker asks for."""
        return tuple(each for each in self.waiting if each.parked)

    @property
    def next_due_ms(self) -> int | None:
        """Return when the earliest waiting message is due, or was; None if none waits, or if no due time is known."""
        return min((each.next_due_ms for each in self.waiting if each.next_due_ms is not None), default=None)

    @property
    def lag_ms(self) -> int:
        """Return how late the oldest ready message is; 0 if none is ready."""
        return max((each.lag_ms for each in self.waiting), default=0)


def status(
    using: str = DEFAULT_ALIAS,
    *,
    patience_s: float | None = None,
    zone: tzinfo = UTC,
    bounds: statistics.Bounds | None = None,
) -> Status:
    """Read every figure of an alias once. This changes nothing. The hours of the forecast are those of `zone`.

    With a store, no more waiting messages are counted than `bounds` allow (`statistics.FULL` unless they are given).

    Without a store, raises `BrokerUnavailable` or `BrokerRefused` if the broker can't answer, or has not done so within
    `patience_s` seconds. With a store, raises `StoreUnavailable`; a broker that is away is only reported.
    """
    backend = get_backend(using)
    if backend.store is not None:
        return _with_store(backend, backend.store, patience_s, zone, bounds or statistics.FULL)
    return within(patience_s, partial(_without_store, backend))


def now_ms(using: str = DEFAULT_ALIAS) -> int:
    """Return the time by the authoritative clock, in epoch milliseconds."""
    backend = get_backend(using)
    if backend.store is not None:
        with backend.store.database.available():
            return int(backend.store.database.now_ms())
    return backend.queue.counts().now_ms


def _without_store(backend: Backend) -> Status:
    before_ms = wall_clock_ms()
    counts = backend.queue.counts()
    skew_ms = skew(counts.now_ms, before_ms, wall_clock_ms())
    workers, pauses = backend.presence.workers(), backend.presence.pauses()
    errors_last_hour = _errors_since(backend, counts.now_ms - HOUR_MS, counts.error)
    return Status(
        now_ms=counts.now_ms,
        clock_skew_ms=skew_ms,
        waiting=waiting_sets(counts, workers, pauses),
        pauses=tuple(pauses),
        running=counts.running,
        suspects=counts.suspects,
        error=counts.error,
        errors_last_hour=errors_last_hour,
        in_part=_in_part(_MOST_ERRORS, errors_last_hour=errors_last_hour),
        totals=counts.totals,
        workers=tuple(sorted(workers, key=lambda worker: worker.name)),
        server=backend.report(),
    )


def _with_store(
    backend: Backend, store: Tables, patience_s: float | None, zone: tzinfo, bounds: statistics.Bounds
) -> Status:
    database = store.database
    with database.available():
        before_ms, asked_ns = wall_clock_ms(), time.monotonic_ns()
        decides_ms, ours = mark.time_and_identity(database)
        skew_ms, told_ns = skew(decides_ms, before_ms, wall_clock_ms()), time.monotonic_ns()
        found = statistics.waiting(database, decides_ms, zone, bounds)
        counted = statistics.count_schedules(database)
        keys = {one.key for one in found.counts.waiting}
        measured = measure(database, decides_ms, [last_hour(decides_ms), last_day(decides_ms)])
        ran_ms = mean_run_times_ms(measured, keys)
    pauses, workers, server, broker_skew_ms = backend.presence.pauses(), None, None, None
    try:
        before_ms = decides_ms + (time.monotonic_ns() - told_ns) // 1_000_000
        workers, server = within(patience_s, partial(_worked_by, store.broker, backend.alias, ours))
        if server.now_ms is not None:
            after_ms = decides_ms + -((asked_ns - time.monotonic_ns()) // 1_000_000)
            broker_skew_ms = skew(server.now_ms, before_ms, after_ms)
            server.warnings += skew_warnings(broker_skew_ms)
    except ForeignMark as error:
        server = ServerReport(_("a broker with another site's mark"), "", foreign=str(error))
    except (BrokerUnavailable, BrokerRefused) as error:
        server = _away(store, error)
    if server.foreign:
        server.problems += [server.foreign, _GOES_ON]
    server.durability = store_backend.DURABILITY
    counts = found.counts
    limits = {key: handler.limits for key, handler in handlers_by_key(database.alias).items() if handler.limits}
    capacity = None if workers is None else Capacity(teams_of(workers), ran_ms, limits)
    in_part = _in_part(
        statistics.MOST,
        error=counts.error,
        errors_last_hour=found.errors_last_hour,
        retried=found.retried,
        schedules=counted.schedules,
    )
    return Status(
        now_ms=decides_ms,
        clock_skew_ms=skew_ms,
        waiting=waiting_sets(counts, workers, pauses),
        pauses=tuple(pauses),
        running=counts.running,
        suspects=counts.suspects,
        error=counts.error,
        errors_last_hour=found.errors_last_hour,
        totals={},
        workers=tuple(sorted(workers or (), key=lambda worker: worker.name)),
        server=server,
        broker_away=workers is None,
        broker_skew_ms=broker_skew_ms,
        retried=found.retried,
        in_part=in_part | {"waiting"} if found.more_sets else in_part,
        last_hour=measured.spans[0],
        last_day=measured.spans[1],
        by_pair=measured.by_pair,
        ever=measured.ever,
        forecast=forecast(found, capacity),
        need=workers_needed(found, capacity),
        untimed=tuple(sorted(keys - ran_ms.keys())),
        schedules=counted,
    )


def _in_part(most: int, **numbers: int) -> frozenset[str]:
    return frozenset(name for name, number in numbers.items() if number >= most)


_GOES_ON = _(
    "As long as that mark is there, workers of a store that has worked with this broker go on from the tables alone, "
    "up to a second later. Those of any other store don't start."
)


def _worked_by(broker: Broker, alias: Alias, ours: str) -> tuple[Sequence[WorkerInfo] | None, ServerReport]:
    """Return the workers, and the broker's report. The workers of another store are not ours, and not returned."""
    server = broker.report()
    if broker.window is not None:
        server.foreign = mark.foreign_mark(alias, broker.window, broker.window.owner(), ours)
    return None if server.foreign else broker.presence.workers(), server


def _away(store: Tables, error: Exception) -> ServerReport:
    after = to_text(store.settings.degraded_after)
    told = _(
        "%(error)s After %(after)s of this workers are degraded: they go on from the tables alone, a second later.",
        error=error,
        after=after,
    )
    return ServerReport(_("the broker is away"), "", problems=[told], is_away=isinstance(error, BrokerUnavailable))


def _errors_since(backend: Backend, since_ms: int, most: int) -> int:
    """Return how many messages were buried after `since_ms`, among the newest thousand."""
    number = 0
    for offset in range(0, min(most, _MOST_ERRORS), _ERRORS_PAGE):
        page = backend.queue.failed(_ERRORS_PAGE, offset)
        recent = [info for info in page if _buried_ms(info) > since_ms]
        number += len(recent)
        if len(recent) < _ERRORS_PAGE:
            break
    return number


def _buried_ms(info: Info) -> int:
    return info.buried_ms or 0
