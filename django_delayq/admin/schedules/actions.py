"""Pause, resume, run and remove schedules, from the list or from the page of one: asked, confirmed, done and logged."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, DELETION
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from django_delayq.admin.access import alias_of, may, operator_of, render_about
from django_delayq.admin.bulk.jobs import is_all
from django_delayq.admin.formatting import exact, number, some, visible
from django_delayq.admin.log import log_schedules
from django_delayq.admin.schedules.admin import PAUSE, REMOVE, RESUME, RUN, Move
from django_delayq.admin.schedules.occurrences import may_be_removed
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Tables
from django_delayq.conf import get_alias
from django_delayq.models import Schedule
from django_delayq.store import schedules
from django_delayq.support.audit import record
from django_delayq.support.validation import MAX_NAME, check_new_name
from django_delayq.translation import translated

AT_ONCE = 100
"""The most schedules that one request acts on."""

SHOWN = 10
"""The most schedules that the confirmation names."""

_QUESTIONS = {
    PAUSE: gettext_lazy("What waits of them is cancelled, and nothing more is put. What runs already goes on."),
    RESUME: gettext_lazy("They go on from now. What fell due meanwhile is left out."),
    RUN: gettext_lazy("A message of each is due at once, whatever its rule says. The rule goes on as before."),
    REMOVE: gettext_lazy("What waits of them is cancelled. What runs already goes on."),
}
_DONE = {
    PAUSE: gettext_lazy("Schedule paused"),
    RESUME: gettext_lazy("Schedule resumed"),
    RUN: gettext_lazy("Schedule run"),
    REMOVE: gettext_lazy("Schedule deleted"),
}


class ReasonForm(forms.Form):
    """Why schedules are paused."""

    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=MAX_NAME)

    def clean_reason(self) -> str:
        """Refuse characters that hide or reorder text."""
        try:
            return check_new_name(self.cleaned_data["reason"], "reason")
        except ValueError as error:
            raise forms.ValidationError(translated(error)) from error


def act_on(admin: Any, request: HttpRequest, rows: QuerySet[Any], move: Move) -> HttpResponse | None:
    """Return the page that asks for confirmation, or do it once it was confirmed."""
    if not (may(request, move.permission) and admin.is_writable(request)):
        raise PermissionDenied
    chosen = list(rows.order_by("name").defer("data")[: AT_ONCE + 1])
    if len(chosen) > AT_ONCE:
        told = _("Nothing was done: these are over %(most)s schedules. Choose fewer.")
        messages.error(request, told % {"most": number(AT_ONCE)})
        return None
    found = [row for row in chosen if may_be_removed(row)] if move is REMOVE else chosen
    if len(found) < len(chosen):
        kept = some([visible(row.name) for row in chosen if not may_be_removed(row)])
        messages.warning(request, _("Not deleted, because the code has them: %(names)s") % {"names": kept})
    if not found:
        messages.warning(request, _("No schedule matches any more, so nothing was done."))
        return None
    confirmed = "post" in request.POST
    form = ReasonForm(request.POST if confirmed else None) if move is PAUSE else None
    if not confirmed or (form and not form.is_valid()):
        return _confirmation(admin, request, found, move, form)
    _do(request, found, move, form.cleaned_data["reason"] if form else "")
    return None


def _do(request: HttpRequest, rows: Sequence[Schedule], move: Move, reason: str) -> None:
    alias = alias_of(request)
    try:
        done = changed_and_logged(request, alias, rows, move, reason)
    except DatabaseError:
        raise
    except Exception as error:  # noqa: BLE001 - a rule can't be read, or a calendar, which is the site's code, fails
        messages.error(request, _("Nothing was done: %(error)s") % {"error": translated(error)})
        return
    for row in done:
        record(operator_of(request), move.name, alias, name=row.name, reason=reason or None)
    told = ngettext("%(did)s: %(count)s schedule.", "%(did)s: %(count)s schedules.", len(done))
    tell = messages.success if done else messages.warning
    tell(request, told % {"did": _DONE[move], "count": number(len(done))})


def changed_and_logged(
    request: HttpRequest, alias: str, rows: Sequence[Schedule], move: Move, reason: str
) -> list[Schedule]:
    """Do it and log it, or neither if the log is in the same database. Return the schedules that it changed."""
    store = store_of(alias)
    with transaction.atomic(get_alias(alias).database):
        done: set[str] = set()
        what: dict[int, str] = {}
        if move is RUN:
            for row in rows:
                ids = store.change_schedules(partial(schedules.run_now, name=row.name))
                done.update(row.name for _id in ids)
                what[row.pk] = visible("".join(ids))
        else:
            names = [row.name for row in rows]
            changes = {
                PAUSE: partial(schedules.pause, names=names, reason=reason),
                RESUME: partial(schedules.resume, names=names),
                REMOVE: partial(schedules.remove, names=names),
            }
            done.update(store.change_schedules(changes[move]))
            what = {row.pk: visible(reason) for row in rows}
        changed = [row for row in rows if row.name in done]
        flag = DELETION if move is REMOVE else CHANGE
        log_schedules(request.user.pk, changed, _DONE[move], what=what, flag=flag)
    return changed


def store_of(alias: str) -> Tables:
    """Return the store of an alias. Without one nothing of schedules is offered."""
    store = get_backend(alias).store
    if store is None:
        raise PermissionDenied
    return store


def _confirmation(
    admin: Any, request: HttpRequest, rows: Sequence[Schedule], move: Move, form: forms.Form | None
) -> HttpResponse:
    return render_about(
        admin,
        request,
        "schedule_confirm",
        title=move.label,
        move=move,
        question=_QUESTIONS[move],
        form=form,
        count=len(rows),
        shown=list(_lines(rows[:SHOWN])),
        not_shown=max(0, len(rows) - SHOWN),
        is_all=is_all(request),
        selected=request.POST.getlist(ACTION_CHECKBOX_NAME)[: None if not is_all(request) else 1],
        action_checkbox_name=ACTION_CHECKBOX_NAME,
        list_address=request.get_full_path(),
    )


def _lines(rows: Sequence[Schedule]) -> Iterator[tuple[str, str, Any]]:
    for row in rows:
        yield visible(row.name), visible(row.key), "" if row.last_at is None else exact(row.last_at)
