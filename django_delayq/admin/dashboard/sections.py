"""The sections of the dashboard, as rows that its templates show."""

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest

from django.http import HttpRequest
from django.urls import NoReverseMatch
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, pgettext

from django_delayq.admin.access import address, may
from django_delayq.admin.formatting import length, listed, moment, number, some
from django_delayq.brokers.base import Pause, RunInfo, WorkerInfo, covering
from django_delayq.core.figures import OTHERS, Figures
from django_delayq.core.requests import Pair
from django_delayq.monitor import Hour, Status, Throughput, WaitingSet, translated

PAUSE = "pause_queue"
MOST_KEYS = 100
"""The most queues and keys whose figures are shown."""


def list_address(request: HttpRequest, model: str, alias: str, **query: str) -> str:
    """Return the address of a list with these filters. It is empty if the user may not see it, or the site lacks it."""
    if not may(request, f"view_{model}"):
        return ""
    try:
        return address(request, f"delayq_{model}_changelist", alias, **query)
    except NoReverseMatch:  # not on this site
        return ""


@dataclass(frozen=True, slots=True)
class Tile:
    """One number, and the address of the list of its messages."""

    name: str
    number: str
    address: str
    alarming: bool = False


def tiles(request: HttpRequest, alias: str, seen: Status) -> list[Tile]:
    """Return the numbers to look at first."""

    def listed(model: str, **query: str) -> str:
        return list_address(request, model, alias, **query) if seen.stored else ""

    retried = number(seen.retried, capped="retried" in seen.in_part)
    failed = listed("errormessage", ended="1h")
    return [
        Tile(_("Waiting"), number(seen.pending + seen.ready, capped=seen.capped), listed("readymessage")),
        Tile(_("Due now"), number(seen.ready, capped=seen.ready_capped), listed("readymessage", state="ready")),
        Tile(_("Running"), number(seen.running, capped=seen.ready_capped), listed("readymessage", state="running")),
        Tile(_("Retried"), retried, listed("readymessage", failures="any")),
        Tile(_("Errors in the last hour"), errors_last_hour(seen), failed, seen.errors_last_hour > 0),
    ]


def errors_last_hour(seen: Status) -> str:
    """Return how many were buried in the last hour."""
    return number(seen.errors_last_hour, capped="errors_last_hour" in seen.in_part)


def is_in_part(seen: Status) -> bool:
    """Return whether some number or time has a `+`."""
    return seen.capped or bool(seen.in_part) or any(not each.complete or each.drain.at_least for each in seen.forecast)


def throughput(seen: Status) -> list[tuple[str, ...]]:
    """Return a row for each span of time: how many finished, how many per second, and how late they had started."""
    spans = ((_("Last hour"), seen.last_hour), (_("Last day"), seen.last_day))
    return [(name, *_throughput(span)) for name, span in spans if span is not None]


def _throughput(span: Throughput) -> tuple[str, ...]:
    late = span.lateness
    lateness = (late.p50, late.p95, late.p99) if late else (None, None, None)
    return *map(number, (span.finished, span.per_s, span.busiest_per_s)), *map(length, lateness)


@dataclass(frozen=True, slots=True)
class KeyRow:
    """What workers did of one queue and key."""

    queue: str
    key: str
    numbers: list[str]


def keys(span: Throughput | None, by_pair: Mapping[Pair, Figures]) -> list[KeyRow]:
    """Return a row for each queue and key of which workers did anything in the span, the busiest first."""
    if span is None:
        return []
    busiest = nsmallest(MOST_KEYS, by_pair.items(), key=lambda item: (-item[1].attempts, item[0]))
    return [
        KeyRow(*(("", _("all others")) if pair == OTHERS else pair), _numbers(figures, span.span_ms))
        for pair, figures in busiest
    ]


def _numbers(figures: Figures, span_ms: int) -> list[str]:
    counted = figures.finished, figures.finished * 1000 / span_ms, figures.failed, figures.buried
    all_times = (figures.lateness.quantiles, figures.run_times.quantiles)
    lengths = [length(ms) for times in all_times for ms in ((times.p50, times.p95) if times else (None, None))]
    return [*map(number, counted), *lengths]


def forecast(seen: Status) -> list[tuple[str | SafeString, str, str]]:
    """Return a row for each hour ahead: when it begins, how many messages fall due, and how long they take."""
    return [(moment(hour.starts_ms), due_of(hour), drain_of(hour)) for hour in seen.forecast]


def capacity(seen: Status) -> list[str]:
    """Return sentences on the assumptions of the forecast's times, and on what they leave out."""
    if seen.broker_away:
        return [_("The workers are not known while the broker is away.")]
    if not seen.workers:
        return [_("No worker is alive, so nothing is drained.")]
    told = [
        _(
            "Times are for the live workers, which run up to %(slots)s messages at once. A message takes as long as "
            "those of its key did, all attempts together. What is ready now is included."
        )
        % {"slots": number(sum(one.most for worker in seen.workers for one in worker.executors))}
    ]
    if seen.untimed:
        told.append(_("Left out, since none has run yet: %(keys)s.") % {"keys": some(seen.untimed)})
    if seen.parked:
        parked = some([f"{each.queue} {each.key}" for each in seen.parked])
        told.append(_("Left out, since no live worker asks for it: %(parked)s.") % {"parked": parked})
    return told


def due_of(hour: Hour) -> str:
    """Return how many messages fall due in an hour."""
    return number(hour.due, capped=not hour.complete)


def drain_of(hour: Hour) -> str:
    """Return how long the messages of an hour take; with a `+` if not all of that is counted, or known."""
    if hour.drain.unserved:
        return _("no worker")
    return length(hour.drain.ms) + ("+" if hour.drain.at_least else "")


@dataclass(frozen=True, slots=True)
class SetRow:
    """A queue and key that messages wait for, and the address of their list."""

    queue: str
    key: str
    address: str
    pending: str
    ready: str
    next_due: str | SafeString
    lag: str
    state: str
    pause_address: str


def sets(request: HttpRequest, alias: str, seen: Status) -> list[SetRow]:
    """Return the queues and keys, those first that need a person most.

    First comes what is ready and parked, because no worker will take it; then where the oldest message is latest; then
    what will be parked when it is due; then the rest by name.
    """
    return [_set(request, alias, seen, each) for each in sorted(seen.waiting, key=_need)]


def _need(each: WaitingSet) -> tuple[bool, int, bool, str, str]:
    """Return a sort key: the lower, the more the set needs a person."""
    return not (each.parked and each.ready), -each.lag_ms, not each.parked, each.queue, each.key


def _set(request: HttpRequest, alias: str, seen: Status, each: WaitingSet) -> SetRow:
    pauses = [_("paused: %(reason)s") % {"reason": one.reason} for one in covering(seen.pauses, each.queue, each.key)]
    parked = [_("parked: no live worker asks for it")] if each.parked else []
    return SetRow(
        each.queue,
        each.key,
        list_address(request, "readymessage", alias, queue=each.queue, key=each.key) if seen.stored else "",
        number(each.pending, capped=each.pending_capped),
        number(each.ready, capped=each.ready_capped),
        moment(each.next_due_ms),
        length(each.lag_ms) if each.lag_ms else "–",
        pgettext("between reasons", "; ").join(parked + pauses),
        "" if pauses else pause_address(request, alias, queue=each.queue, key=each.key),
    )


def pause_address(request: HttpRequest, alias: str, **of: str) -> str:
    """Return the address where the user may pause a queue or key; empty if the user may not."""
    return address(request, "delayq_dashboard_pause", alias, **of) if may(request, PAUSE) else ""


@dataclass(frozen=True, slots=True)
class PauseRow:
    """A pause in force."""

    names: str
    reason: str
    since: str | SafeString
    until: str | SafeString
    resume_address: str


def pauses(request: HttpRequest, alias: str, seen: Status) -> list[PauseRow]:
    """Return the pauses, also of queues and keys where nothing waits."""
    return [_pause(request, alias, each) for each in seen.pauses]


def _pause(request: HttpRequest, alias: str, pause: Pause) -> PauseRow:
    of = {name: value for name, value in (("queue", pause.queue), ("key", pause.key)) if value is not None}
    return PauseRow(
        translated(pause.names),
        pause.reason,
        moment(pause.paused_ms),
        _("it is resumed") if pause.until_ms is None else moment(pause.until_ms),
        address(request, "delayq_dashboard_resume", alias, **of) if may(request, PAUSE) else "",
    )


@dataclass(frozen=True, slots=True)
class RunRow:
    """A message that runs, and for how long. `id` and `address` are empty for a user who may not see it."""

    key: str
    time: str
    id: str
    address: str


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A live worker, and the messages that it reported as running."""

    name: str
    queues: str
    running: str
    up: str
    runs: list[RunRow]


def workers(request: HttpRequest, alias: str, seen: Status) -> list[WorkerRow]:
    """Return the live workers by name."""
    return [_worker(request, alias, seen, each) for each in seen.workers]


def _worker(request: HttpRequest, alias: str, seen: Status, worker: WorkerInfo) -> WorkerRow:
    return WorkerRow(
        worker.name,
        listed(worker.queues),
        number(worker.running),
        length(max(seen.now_ms - worker.started_ms, 0)),
        [_run(request, alias, seen, each) for each in worker.runs],
    )


def _run(request: HttpRequest, alias: str, seen: Status, run: RunInfo) -> RunRow:
    may_see = may(request, "view_readymessage")
    return RunRow(
        run.key,
        length(max(seen.now_ms - run.started_ms, 0)),
        run.id if may_see else "",
        list_address(request, "readymessage", alias, q=run.id) if seen.stored else "",
    )
