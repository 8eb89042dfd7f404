"""The dashboard: the data that it shows, and the addresses of its parts."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from django.contrib.admin import AdminSite
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _, ngettext

from django_delayq.admin.access import address, alias_of, check_may_look, database_of, query_of, site_of
from django_delayq.admin.dashboard import charts, sections
from django_delayq.admin.dashboard.storeless import groups
from django_delayq.admin.formatting import exact
from django_delayq.admin.lists.bounded import LIMIT_S, TooSlow, time_limit
from django_delayq.admin.visibility import sees_all
from django_delayq.conf import alias_names, get_alias
from django_delayq.core.errors import DelayqError
from django_delayq.core.figures import Figures
from django_delayq.core.requests import Pair
from django_delayq.models import AnyMessage
from django_delayq.monitor import Status, Throughput, last_month, measure, status
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import to_text
from django_delayq.translation import translated

PATIENCE_S = 1.0
"""How long a page waits for a broker."""

BACK, DAY, MONTH = "back", "day", "30d"
"""The parameter of the address that says how far back the figures by queue and key go, and its two values."""

SKEW_MS = 100
"""A greater difference between two clocks, in ms, is reported."""


def page_context(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the app's index: the figures, which a script updates, and the parts around them."""
    context = figures_context(request)
    alias = context["alias"]
    names = alias_names()
    return context | {
        "aliases": [(name, query_of(name)) for name in names] if len(names) > 1 else [],
        "search_address": _search_address(request, alias),
        "update_address": address(request, "delayq_dashboard", alias, **({BACK: MONTH} if _is_month(request) else {})),
        "groups": [] if context["trouble"] else _groups(request, alias),
        "move_address": address(request, "delayq_dashboard_storeless", alias),
        "request": request,
    }


def _search_address(request: HttpRequest, alias: str) -> str:
    """Return the address of the page of all messages; empty if this site has none, or no message is kept."""
    if get_alias(alias).store is None or not site_of(request).is_registered(AnyMessage):
        return ""
    return address(request, "delayq_anymessage_changelist", alias)


def figures_context(request: HttpRequest) -> dict[str, Any]:
    """Return the figures of the alias that the address names, or the reason why there are none."""
    alias = alias_of(request)
    context = {"alias": alias, "trouble": "", "summary": _("The figures can't be had.")}
    if not sees_all(request.user, alias):
        return context | _own_figures(request, alias)
    try:
        seen, span, by_pair = _look(alias, is_month=_is_month(request))
    except (DelayqError, ImproperlyConfigured) as error:
        return context | {"trouble": translated(error)}
    except TooSlow:
        return context | {"trouble": _("Finding the figures took over %(limit)g s.") % {"limit": LIMIT_S}}
    return context | {
        "seen": seen,
        "server": translated(seen.server.server),
        "durability": translated(seen.server.durability),
        "checked_at": exact(from_ms(seen.now_ms)),
        "summary": _summary(seen),
        "warnings": list(_warnings(seen)),
        "tiles": sections.tiles(request, alias, seen),
        "in_part": sections.is_in_part(seen),
        "throughput": sections.throughput(seen),
        "throughput_chart": charts.throughput(seen.last_hour, _("Messages finished in each minute of the last hour")),
        "failures_chart": charts.failures(span, _("Failed attempts in each part of the time")),
        "back": _spans(request, alias),
        "keys": sections.keys(span, by_pair),
        "more_keys": len(by_pair) > sections.MOST_KEYS,
        "keys_chart": charts.throughput(span, _("Messages finished in each part of the time")),
        "forecast": sections.forecast(seen),
        "capacity": sections.capacity(seen),
        "forecast_chart": charts.forecast(seen),
        "forecast_numbers": charts.forecast_numbers(seen),
        "forecast_axis": charts.forecast_axis(seen),
        "sets": sections.sets(request, alias, seen),
        "pauses": sections.pauses(request, alias, seen),
        "pause_address": sections.pause_address(request, alias),
        "workers": sections.workers(request, alias, seen),
    }


def _own_figures(request: HttpRequest, alias: str) -> dict[str, Any]:
    """Return only figures of the rows that the user may see, for a user who may not see all rows."""
    if get_alias(alias).store is None:
        return {"is_part": True, "summary": ""}
    database = database_of(alias)
    try:
        with database.available(), time_limit(database.using):
            return {"is_part": True, "summary": "", "tiles": sections.own_tiles(request, alias)}
    except DelayqError as error:
        return {"trouble": translated(error)}
    except TooSlow:
        return {"trouble": _("Finding the figures took over %(limit)g s.") % {"limit": LIMIT_S}}


def _groups(request: HttpRequest, alias: str) -> list[dict[str, Any]]:
    if not sees_all(request.user, alias):  # what a broker carries has no rows, which the hook could narrow
        return []
    try:
        return groups(request, alias, PATIENCE_S)
    except DelayqError:  # the broker went away just now: the next update says so
        return []


def fragment_view(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Render only the part of the page that its script updates in place.

    The script asks for it even if nobody is at the screen, so it must not keep an idle session alive.
    """
    check_may_look(site, request)
    response = render(request, "admin/delayq/dashboard/figures.html", figures_context(request))
    _leave_session_as_it_is(request)
    return response


def _leave_session_as_it_is(request: HttpRequest) -> None:
    """Keep Django from saving the session and sending its cookie, even with `SESSION_SAVE_EVERY_REQUEST`."""
    with suppress(AttributeError):  # the site may have sessions of its own
        del request.session.modified  # a session without it is one that the middleware has nothing to do with


def _is_month(request: HttpRequest) -> bool:
    return request.GET.get(BACK) == MONTH


def _spans(request: HttpRequest, alias: str) -> list[tuple[str, str, bool]]:
    """Return the spans of time to choose from: the name and address of each, and whether it is shown now."""
    is_month = _is_month(request)
    names = (_("Last day"), DAY, not is_month), (_("Last 30 days"), MONTH, is_month)
    return [(name, query_of(alias, **{BACK: value}), is_shown) for name, value, is_shown in names]


def _look(alias: str, *, is_month: bool) -> tuple[Status, Throughput | None, Mapping[Pair, Figures]]:
    """Return the status, and what the workers did in a span of time: in total, and by queue and key.

    Without a store there is only the status.
    """
    if get_alias(alias).store is None:
        return status(alias, patience_s=PATIENCE_S), None, {}
    database = database_of(alias)
    with database.available(), time_limit(database.using):
        seen = status(alias, patience_s=PATIENCE_S, zone=timezone.get_current_timezone())
        if not is_month:
            return seen, seen.last_day, seen.by_pair
        measured = measure(database, seen.now_ms, [last_month(seen.now_ms)])
        return seen, measured.spans[0], measured.by_pair


def _warnings(seen: Status) -> Iterator[str]:
    """Yield a warning for each condition that somebody should do something about."""
    yield from map(translated, [*seen.server.problems, *seen.server.warnings])
    if abs(seen.clock_skew_ms) > SKEW_MS:
        skew = to_text(abs(seen.clock_skew_ms))
        yield _("The authoritative clock is %(skew)s off from this machine's.") % {"skew": skew}
    if not seen.workers and not seen.broker_away:
        yield _("No worker is alive: start one with manage.py run_delayq.")


def _summary(seen: Status) -> str:
    """Return the summary that a screen reader reads out when it changes."""
    errors = seen.errors_last_hour
    said_of_errors = ngettext(
        "%(number)s message failed in the last hour.", "%(number)s messages failed in the last hour.", errors
    )
    number = sections.errors_last_hour(seen)
    return " ".join([said_of_errors % {"number": number}, _said_of_workers(seen), *_warnings(seen)])


def _said_of_workers(seen: Status) -> str:
    if seen.broker_away:
        return _("The workers are not known while the broker is away.")
    workers = len(seen.workers)
    return ngettext("%(number)d worker is alive.", "%(number)d workers are alive.", workers) % {"number": workers}
