"""The page of one schedule: what it is, when it comes next, its messages, and what operators did to it."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.formats import date_format
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.access import (
    address,
    alias_of,
    may,
    may_view,
    message_address,
    render_about,
    stored_aliases,
)
from django_delayq.admin.formatting import exact, in_utc, now_utc, number, queue_words, visible
from django_delayq.admin.lists.bounded import is_primary_key
from django_delayq.admin.log import entries_of_schedule
from django_delayq.admin.message.errors import hide_errors, may_view_errors
from django_delayq.admin.message.page import Fact
from django_delayq.admin.message.payload import payload_of
from django_delayq.admin.schedules.occurrences import (
    due_times,
    next_ten,
    rule_in,
    shown,
    state_in_words,
    window_in_words,
    zone_of_rule,
)
from django_delayq.conf import get_alias
from django_delayq.core.codec import read
from django_delayq.core.recurrence import Rule
from django_delayq.core.requests import Header
from django_delayq.core.transitions import without_values
from django_delayq.models import AnyMessage, ReadyMessage, Schedule
from django_delayq.translation import rule_words, translated

CATCH_UP = {
    "last": gettext_lazy("the last one of those that were missed is put late"),
    "all": gettext_lazy("all that were missed are put late, the last 1,000 at most"),
    "none": gettext_lazy("what was missed is left out"),
}
OVERLAP = {
    "skip": gettext_lazy("what falls due while the one before it runs is left out"),
    "after": gettext_lazy("what falls due while the one before it runs is run afterwards"),
    "allow": gettext_lazy("several may run at once"),
}


class Upcoming(NamedTuple):
    """The next occurrences: each in the zone of the rule and in the viewer's, or why they can't be told.

    With a window or a spread, each also has the time at which its message is due; else that is None.
    """

    zone: str
    rows: list[tuple[str, SafeString, SafeString | None]]
    has_due_times: bool = False
    error: str = ""


def found(admin: Any, request: HttpRequest, object_id: str) -> Schedule | HttpResponse:
    """Return the schedule that an address names, or a redirect if it is of another alias or is gone."""
    if not admin.has_view_permission(request):
        raise PermissionDenied
    alias, _colon, pk = unquote(object_id).rpartition(":")  # as admin/log.py writes it
    if alias in stored_aliases() and is_primary_key(pk):
        return HttpResponseRedirect(address(request, "delayq_schedule_change", alias, pk))
    row: Schedule | None = admin.get_object(request, object_id) if is_primary_key(pk) else None
    if row is not None:
        return row
    messages.warning(request, _("There is no schedule %(pk)s any more.") % {"pk": visible(unquote(object_id))})
    return HttpResponseRedirect(address(request, "delayq_schedule_changelist", alias_of(request)))


def schedule_page(admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    """Render the page of a schedule."""
    row = found(admin, request, object_id)
    if isinstance(row, HttpResponse):
        return row
    sees_errors = may_view_errors(request)
    payload = payload_of(row, request)
    hide_errors(request, [row])
    rule, why_not = rule_in(row)
    next_ones = Upcoming("", [])
    if rule is not None:
        next_ones = upcoming(rule, lambda: next_ten(row, rule, now_utc()), due_times(row.name, row.window, rule))
    error = why_not or visible(row.error) or next_ones.error
    can_run = may(request, "run_schedule") and admin.is_writable(request) and rule is not None
    original = shown(row)
    return render_about(
        admin,
        request,
        "schedule",
        title=original.name,
        original=original,
        facts=list(_facts(original, rule)),
        links=list(_links(admin, request, row)),
        upcoming=next_ones,
        error=error if sees_errors else without_values(error),
        sees_errors=sees_errors,
        payload=payload,
        entries=list(entries_of_schedule(row)),
        buttons=admin.buttons(request, row),
        edit_address=_address(request, row, "edit") if admin.has_change_permission(request, row) else "",
        edit_title=_("Change the schedule"),
        backfill_address=_address(request, row, "backfill") if can_run else "",
        list_address=address(request, "delayq_schedule_changelist", row.alias),
    )


def upcoming(
    rule: Rule, find: Callable[[], Iterable[datetime]], due_at: Callable[[datetime], datetime] | None = None
) -> Upcoming:
    """Return the occurrences of a rule that `find` returns, for display. `due_at` says when each is due if later."""
    zone = zone_of_rule(rule)
    try:
        rows = [(in_zone(at, zone), exact(at), exact(due_at(at)) if due_at else None) for at in find()]
    except Exception as error:  # noqa: BLE001 - a calendar is the site's code
        return Upcoming(zone, [], error=visible(f"{type(error).__name__}: {translated(error)}"))
    return Upcoming(zone, rows, has_due_times=due_at is not None)


def in_zone(at: datetime, zone: str) -> str:
    """Return what the clocks of a zone show at an instant, with the day of the week."""
    local = at.astimezone(ZoneInfo(zone))
    return f"{date_format(local, 'D')} {local:%Y-%m-%d %H:%M:%S}"


def _address(request: HttpRequest, row: Schedule, page: str) -> str:
    return address(request, f"delayq_schedule_{page}", row.alias, row.pk)


def _facts(row: Schedule, rule: Rule | None) -> Iterator[Fact]:
    yield Fact(_("state"), state_in_words(row))
    yield Fact(_("rule"), _("can't be read") if rule is None else visible(rule_words(rule)))
    if row.window:
        yield Fact(_("window"), window_in_words(row))
    yield Fact(_("key"), row.key)
    yield Fact(_("queue"), visible(queue_words(read(row.header, Header).queue)))
    yield Fact(_("alias"), row.alias)
    yield Fact(_("origin"), row.get_origin_display())
    for name, at in (
        (_("start"), row.start_at),
        (_("until"), row.until_at),
        (_("paused at"), row.paused_at),
        (_("not in the code since"), row.gone_at),
    ):
        if at is not None:
            yield Fact(name, exact(at), in_utc(at))
    so_far = number(row.put_count)
    if row.most is not None:
        so_far = _("%(number)s of %(most)s") % {"number": so_far, "most": number(row.most)}
    yield Fact(_("occurrences so far"), so_far)
    yield Fact(_("catch-up"), CATCH_UP.get(row.catch_up, row.catch_up))
    yield Fact(_("overlap"), OVERLAP.get(row.overlap, row.overlap))


def _links(admin: Any, request: HttpRequest, row: Schedule) -> Iterator[tuple[str, str]]:
    """Yield the address and the text of the pages with its messages."""
    if row.message_id and may_view(admin.admin_site, request, ReadyMessage):
        waiting = ReadyMessage.objects.using(get_alias(row.alias).database).filter(alias=row.alias)
        message = waiting.filter(message_id=row.message_id).only("alias").first()
        if message is not None:
            yield message_address(request, message), _("The message that waits or runs")
    if may_view(admin.admin_site, request, AnyMessage):
        messages_of = address(request, "delayq_anymessage_changelist", row.alias, q=f"{row.name}@*")
        yield messages_of, _("All of its messages")
