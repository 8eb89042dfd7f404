"""The sections of the dashboard, as rows that its templates show."""

from collections.abc import Mapping
from heapq import nsmallest
from typing import Any

from django.http import HttpRequest
from django.urls import NoReverseMatch
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, pgettext

from django_delayq.admin.access import address, may
from django_delayq.admin.formatting import length, listed, moment, now_utc, number, queue_words, some, visible
from django_delayq.admin.lists.bounded import COUNTED
from django_delayq.admin.lists.filters import condition
from django_delayq.admin.visibility import visible_rows
from django_delayq.brokers.base import Pause, RunInfo, covering
from django_delayq.core.figures import OTHERS, Figures
from django_delayq.core.lanes import split_lane
from django_delayq.core.requests import Pair
from django_delayq.models import ErrorMessage, MessageRow, ReadyMessage
from django_delayq.monitor import Hour, Status, Throughput, WaitingSet
from django_delayq.translation import translated

Row = dict[str, Any]
"""The values that a template shows in a row."""

PAUSE = "pause_queue"
MOST_KEYS = 100
"""The most queues and keys whose figures are shown."""


def list_address(request: HttpRequest, model: str, alias: str, **query: str) -> str:
    """Return the address of a list with these filters.

    Return "" if the user may not see the list, or the site lacks it.
    """
    if not may(request, f"view_{model}"):
        return ""
    try:
        return address(request, f"delayq_{model}_changelist", alias, **query)
    except NoReverseMatch:  # not on this site
        return ""


def tiles(request: HttpRequest, alias: str, seen: Status) -> list[Row]:
    """Return the numbers that an operator looks at first."""
    numbers = [
        number(seen.pending + seen.ready, capped=seen.capped),
        number(seen.ready, capped=seen.ready_capped),
        number(seen.running, capped=seen.ready_capped),
        number(seen.retried, capped="retried" in seen.in_part),
        errors_last_hour(seen),
    ]
    failed = seen.errors_last_hour > 0
    return [
        {
            "name": name,
            "number": shown,
            "address": list_address(request, str(model._meta.model_name), alias, **query) if seen.stored else "",
            "alarming": failed and model is ErrorMessage,
        }
        for (name, model, query), shown in zip(_tiles(), numbers, strict=True)
    ]


def _tiles() -> list[tuple[str, type[MessageRow], dict[str, str]]]:
    """Return the name of each tile, and the list and its filters that it links to.

    The list of "Waiting" also shows what runs, which `tiles` does not count.
    """
    return [
        (_("Waiting"), ReadyMessage, {}),
        (_("Due now"), ReadyMessage, {"state": "ready"}),
        (_("Running"), ReadyMessage, {"state": "running"}),
        (_("Retried"), ReadyMessage, {"failures": "any"}),
        (_("Failed in the last hour"), ErrorMessage, {"ended": "1h"}),
    ]


def own_tiles(request: HttpRequest, alias: str) -> list[Row]:
    """Return the tiles with numbers of the rows that the user may see, each counted as its list counts them.

    So "Waiting" includes the messages that run. A list that the user may not see has no tile.
    """
    now = now_utc()
    shown = []
    for name, model, query in _tiles():
        link = list_address(request, str(model._meta.model_name), alias, **query)
        if link:
            conditions = [condition(parameter, value, now, alias) for parameter, value in query.items()]
            rows = visible_rows(request.user, model, alias).filter(*conditions)
            count = rows.order_by()[: COUNTED + 1].count()
            counted = number(min(count, COUNTED), capped=count > COUNTED)
            shown.append({"name": name, "number": counted, "address": link, "alarming": False})
    return shown


def errors_last_hour(seen: Status) -> str:
    """Return how many messages were buried in the last hour."""
    return number(seen.errors_last_hour, capped="errors_last_hour" in seen.in_part)


def is_in_part(seen: Status) -> bool:
    """Return whether a figure was counted only in part. On the dashboard such a number or time has a `+`."""
    return seen.capped or bool(seen.in_part) or any(not each.complete or each.drain.at_least for each in seen.forecast)


def throughput(seen: Status) -> list[tuple[str, ...]]:
    """Return a row for each span: how many messages finished, how many per second, and how late they started."""
    spans = ((_("Last hour"), seen.last_hour), (_("Last day"), seen.last_day))
    return [(name, *_throughput(span)) for name, span in spans if span is not None]


def _throughput(span: Throughput) -> tuple[str, ...]:
    late = span.lateness
    lateness = (late.p50, late.p95, late.p99) if late else (None, None, None)
    return *map(number, (span.finished, span.per_s, span.busiest_per_s)), *map(length, lateness)


def keys(span: Throughput | None, by_pair: Mapping[Pair, Figures]) -> list[Row]:
    """Return a row for each queue and key that has figures, the busiest first, at most `MOST_KEYS`.

    There is none if the span is None. One row may be for all other queues and keys together.
    """
    if span is None:
        return []
    busiest = nsmallest(MOST_KEYS, by_pair.items(), key=lambda item: (-item[1].attempts, item[0]))
    names = [("", _("all others")) if pair == OTHERS else pair for pair, _figures in busiest]
    return [
        {"queue": visible(queue_words(queue)), "key": visible(key), "numbers": _numbers(figures, span.span_ms)}
        for (queue, key), (_pair, figures) in zip(names, busiest, strict=True)
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
        told.append(_("Left out, because none has run yet: %(keys)s.") % {"keys": some(seen.untimed)})
    if seen.parked:
        parked = some([f"{queue_words(each.queue)} {each.key}" for each in seen.parked])
        told.append(_("Left out, because no live worker asks for it: %(parked)s.") % {"parked": parked})
    return told


def due_of(hour: Hour) -> str:
    """Return how many messages fall due in an hour."""
    return number(hour.due, capped=not hour.complete)


def drain_of(hour: Hour) -> str:
    """Return how long the messages of an hour take, with a `+` if they may take longer."""
    if hour.drain.unserved:
        return _("no worker")
    return length(hour.drain.ms) + ("+" if hour.drain.at_least else "")


def sets(request: HttpRequest, alias: str, seen: Status) -> list[Row]:
    """Return a row for each queue and key, first those that need a person most.

    First come those with ready messages that no worker asks for, because nobody will take them; then those whose oldest
    message is latest; then those that will be parked once they are due; then the rest by name.
    """
    return [_set(request, alias, seen, each) for each in sorted(seen.waiting, key=_need)]


def _need(each: WaitingSet) -> tuple[bool, int, bool, str, str]:
    """Return a sort key: the lower, the more this queue and key need a person."""
    return not (each.parked and each.ready), -each.lag_ms, not each.parked, each.queue, each.key


def _set(request: HttpRequest, alias: str, seen: Status, each: WaitingSet) -> Row:
    of = {"queue": each.queue, "key": each.key}
    queue, priority = split_lane(each.queue)
    listed_by = of | {"queue": queue} | ({"priority": str(priority)} if priority else {})
    pauses = [_("paused: %(reason)s") % {"reason": one.reason} for one in covering(seen.pauses, each.queue, each.key)]
    parked = [_("parked: no live worker asks for it")] if each.parked else []
    return {
        "queue": visible(queue_words(each.queue)),
        "key": visible(each.key),
        "address": list_address(request, "readymessage", alias, **listed_by) if seen.stored else "",
        "pending": number(each.pending, capped=each.pending_capped),
        "ready": number(each.ready, capped=each.ready_capped),
        "next_due": moment(each.next_due_ms),
        "lag": length(each.lag_ms) if each.lag_ms else "–",
        "state": pgettext("between reasons", "; ").join(parked + pauses),
        "pause_address": "" if pauses else pause_address(request, alias, **of),
    }


def pause_address(request: HttpRequest, alias: str, **of: str) -> str:
    """Return the address where the user may pause a queue or key; empty if the user may not."""
    return address(request, "delayq_dashboard_pause", alias, **of) if may(request, PAUSE) else ""


def pauses(request: HttpRequest, alias: str, seen: Status) -> list[Row]:
    """Return the pauses, also of queues and keys where nothing waits."""
    return [_pause(request, alias, each) for each in seen.pauses]


def _pause(request: HttpRequest, alias: str, pause: Pause) -> Row:
    of = {name: value for name, value in (("queue", pause.queue), ("key", pause.key)) if value is not None}
    return {
        "names": translated(pause.names),
        "reason": visible(pause.reason),
        "since": moment(pause.paused_ms),
        "until": _("it is resumed") if pause.until_ms is None else moment(pause.until_ms),
        "resume_address": address(request, "delayq_dashboard_resume", alias, **of) if may(request, PAUSE) else "",
    }


def workers(request: HttpRequest, alias: str, seen: Status) -> list[Row]:
    """Return a row for each live worker, with the messages that it reported as running.

    A user who may not see messages is not told their ids.
    """
    may_see = may(request, "view_readymessage")

    def run_of(run: RunInfo) -> Row:
        return {
            "key": visible(run.key),
            "time": length(max(seen.now_ms - run.started_ms, 0)),
            "id": visible(run.id) if may_see else "",
            "address": list_address(request, "readymessage", alias, q=run.id) if seen.stored else "",
        }

    return [
        {
            "name": visible(worker.name),
            "queues": visible(listed(worker.queues)),
            "running": number(worker.running),
            "up": length(max(seen.now_ms - worker.started_ms, 0)),
            "runs": list(map(run_of, worker.runs)),
        }
        for worker in seen.workers
    ]
