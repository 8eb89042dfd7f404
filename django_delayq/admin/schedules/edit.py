"""Add a schedule, or change one: typed, shown with its next occurrences, then saved as it was shown."""

import json
from itertools import islice
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import ADDITION, CHANGE
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.access import address, alias_of, database_of, may, operator_of, render_about
from django_delayq.admin.bulk.confirmation import mark_of
from django_delayq.admin.formatting import now_utc, visible
from django_delayq.admin.log import hashed, log_schedules
from django_delayq.admin.message.payload import Payload, payload_of
from django_delayq.admin.schedules.actions import store_of
from django_delayq.admin.schedules.form import ScheduleForm
from django_delayq.admin.schedules.occurrences import SHOWN, due_times, following, rule_in, window_in_words
from django_delayq.admin.schedules.page import Upcoming, found, upcoming
from django_delayq.api.schedules import save_schedule
from django_delayq.conf import get_alias
from django_delayq.core.recurrence import NewSchedule
from django_delayq.models import Schedule
from django_delayq.store.schedules import rows_of
from django_delayq.support.audit import record
from django_delayq.translation import rule_words, translated

_WRITTEN = ("key", "header", "data", "rule", "window", "start_at", "until_at", "most", "catch_up", "overlap")
"""The columns that say what is wanted: those that a change may write."""

_OF_TIMES = {"rule", "zone", "calendar", "start", "until"}
"""The fields that say when a schedule occurs. Others may be changed of one that is over."""

_ADDED, _CHANGED = gettext_lazy("Schedule added"), gettext_lazy("Schedule changed")


def add_page(admin: Any, request: HttpRequest) -> HttpResponse:
    """Show the form of a new schedule, and write it."""
    if not admin.has_add_permission(request):
        raise PermissionDenied
    payload = Payload("null") if may(request, "edit_payload") else None
    return _page(admin, request, None, payload)


def edit_page(admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    """Show the form of a schedule, and change it."""
    row = found(admin, request, object_id)
    if isinstance(row, HttpResponse):
        return row
    if not admin.has_change_permission(request, row):
        raise PermissionDenied
    payload = payload_of(row, request)
    may_type = may(request, "edit_payload") and payload.text is not None and not payload.masked
    return _page(admin, request, row, payload if may_type else None)


def _page(admin: Any, request: HttpRequest, row: Schedule | None, payload: Payload | None) -> HttpResponse:
    alias = get_alias(alias_of(request))
    form = ScheduleForm(request.POST or None, alias, row, payload)
    before = _mark_of(row)
    if form.is_valid() and request.POST.get("before", "") != before:
        form.add_error(None, _("The schedule was changed since you opened this page. What you typed is kept here."))
    elif form.is_valid() and row is None and _is_known(alias.name, form.cleaned_data["name"]):
        form.add_error("name", _("There is a schedule with this name."))
    preview: dict[str, Any] = {}
    if form.is_valid() and form.wanted is not None:
        shown = mark_of(json.dumps([form.cleaned_data, before], default=str))
        if "save" in request.POST and request.POST.get("shown") == shown:
            saved = _save(request, form, row)
            if saved is not None:
                return HttpResponseRedirect(address(request, "delayq_schedule_change", alias.name, saved.pk))
        else:
            preview = _preview(form.wanted, row, shown)
            if _is_over(preview["upcoming"]) and (row is None or _OF_TIMES & {*form.changed_data}):
                told = _("Nothing is to come by this: look at the rule, the start, the end and how many in all.")
                form.add_error("until" if form.cleaned_data["until"] else "rule", told)
                preview = {}
    back = "delayq_schedule_changelist", alias.name
    return render_about(
        admin,
        request,
        "schedule_edit",
        title=_("Change the schedule") if row else _("Add a schedule"),
        original=row,
        form=form,
        before=before,
        back_address=address(request, *(("delayq_schedule_change", alias.name, row.pk) if row else back)),
        list_address=address(request, *back),
        **preview,
    )


def _is_over(found: Upcoming) -> bool:
    return not found.rows and not found.error


def _mark_of(row: Schedule | None) -> str:
    return "" if row is None else mark_of(json.dumps([str(getattr(row, name)) for name in _WRITTEN]))


def _is_known(alias: str, name: str) -> bool:
    return bool(name) and rows_of(database_of(alias)).filter(name=name).exists()


def _preview(wanted: NewSchedule, row: Schedule | None, shown: str) -> dict[str, Any]:
    """Return what the page shows of a schedule before it is written."""
    after = Schedule(most=wanted.count, put_count=0 if row is None else row.put_count)
    after.start_at, after.until_at = wanted.start, wanted.until
    now = now_utc()
    due_at = due_times(wanted.name, wanted.window, wanted.rule)
    found = upcoming(wanted.rule, lambda: islice(following(after, wanted.rule, now), SHOWN), due_at)
    return {"words": visible(rule_words(wanted.rule)), "upcoming": found, "failure": found.error, "shown": shown}


def _save(request: HttpRequest, form: ScheduleForm, row: Schedule | None) -> Schedule | None:
    """Write the schedule, and log it. Return None if that failed: the form then says why."""
    wanted, alias = form.wanted, form.alias
    assert wanted is not None  # noqa: S101  - the form is valid
    database = database_of(alias.name)
    try:
        with transaction.atomic(database.using):
            save_schedule(store_of(alias.name), wanted)
            saved = rows_of(database).get(name=wanted.name)
            did, flag = (_CHANGED, CHANGE) if row else (_ADDED, ADDITION)
            log_schedules(request.user.pk, [saved], did, what={saved.pk: _difference(row, saved)}, flag=flag)
    except DatabaseError:
        raise
    except Exception as error:  # noqa: BLE001 - a calendar is the site's code
        form.add_error(None, translated(error))
        return None
    record(operator_of(request), "change_schedule" if row else "add_schedule", alias.name, name=wanted.name)
    messages.success(request, _("The schedule was saved."))
    return saved


def _difference(before: Schedule | None, after: Schedule) -> str:
    """Return what was written, as the log keeps it. A hash stands for data."""
    was = {} if before is None else _logged(before)
    changes = [
        f"{name}={f'{was[name]} → ' if name in was else ''}{value}"
        for name, value in _logged(after).items()
        if was.get(name, "None") != value
    ]
    return visible("; ".join(changes))


def _logged(row: Schedule) -> dict[str, str]:
    texts = {name: str(getattr(row, name)) for name in _WRITTEN if name not in ("header", "window")}
    rule, _why_not = rule_in(row)
    texts |= {"window": window_in_words(row)} if row.window else {}
    return texts | {"data": hashed(row.data), "rule": texts["rule"] if rule is None else str(rule)}
