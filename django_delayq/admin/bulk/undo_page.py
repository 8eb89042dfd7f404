"""The page that undoes an action of the lists: at once, or by a job in the background."""

from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from django_delayq.admin.access import (
    address,
    alias_of,
    database_of,
    may,
    name_of_user,
    operator_of,
    redirected_on_outage,
    render_about,
    store_of,
)
from django_delayq.admin.bulk import actions, jobs
from django_delayq.admin.bulk.changes import Change, audited_name, label_of, permission_of
from django_delayq.admin.bulk.jobs import Selection, job_address
from django_delayq.admin.bulk.undo import PageUndone, changed_by, list_of, put_back
from django_delayq.admin.formatting import exact, now_utc, visible
from django_delayq.admin.lists.bounded import is_primary_key
from django_delayq.admin.log import due_changes, log_rows
from django_delayq.admin.visibility import sees_all
from django_delayq.brokers.base import Action
from django_delayq.conf import get_alias
from django_delayq.core.errors import DelayqError
from django_delayq.models import ActionRow
from django_delayq.support.audit import record
from django_delayq.support.timestamps import to_epoch_ms
from django_delayq.translation import translated

_UNDONE = {
    "cancel": gettext_lazy("Cancel undone"),
    "reschedule": gettext_lazy("Reschedule undone"),
    "run_now": gettext_lazy("Run now undone"),
    "send_again": gettext_lazy("Send again undone"),
}
"""Words for the log of a message that was put back, by the kind of the action."""


_GIVEN_BACK = gettext_lazy("Each gets back its due time from before the action; if that is past, it is due now.")
_QUESTIONS = {
    "cancel": gettext_lazy("Each waits again, until its due time; if that is past, it is due now."),
    "reschedule": _GIVEN_BACK,
    "run_now": _GIVEN_BACK,
    "send_again": gettext_lazy("Each is cancelled."),
}
"""Words for what the undo does with each message, by the kind of the action."""


@redirected_on_outage
def undo_page(admin: Any, request: HttpRequest, pk: str) -> HttpResponse:
    """Ask whether to undo an action; by POST, undo it.

    That needs the permission of the action, and is for who did it, or for one who may see all messages.
    """
    if not admin.has_view_permission(request):
        raise PermissionDenied
    alias, list_name = alias_of(request), admin.opts.model_name
    rows = ActionRow.objects.using(get_alias(alias).database).filter(alias=alias)
    row = rows.filter(pk=pk).first() if is_primary_key(pk) else None
    is_own = row is not None and row.by == name_of_user(request)
    if row is None or not (is_own or sees_all(request.user, alias)):
        raise Http404(_("There is no such action any more."))
    change = Change(row.kind, undoes=row.name)  # type: ignore[arg-type]  # kinds are moves
    if list_of(row) != list_name or not may(request, permission_of(change)):
        raise PermissionDenied
    list_address = address(request, f"delayq_{list_name}_changelist", alias)
    begun = jobs.progress(alias, row.name)
    if begun and jobs.goes_on(*begun):
        messages.warning(request, _("The action still goes on: stop it, or wait for its end, then undo it."))
        return HttpResponseRedirect(job_address(request, list_name, alias, row.name))
    count = actions.counted(changed_by(row))
    if row.undone_at is not None and count == 0:
        said = _("This was undone already, by %(who)s.") % {"who": visible(row.undone_by) or "-"}
        messages.warning(request, said)
        return HttpResponseRedirect(list_address)
    in_background = count is None or count > actions.AT_ONCE
    if request.method == "POST":
        name = jobs.posted_name(request)
        if not in_background and not jobs.progress(alias, name):
            _undo(request, row, change)
            return HttpResponseRedirect(list_address)
        try:
            _begin(request, row, change, name, count or 0)
        except DelayqError as error:
            messages.error(request, _("It did not begin: %(error)s") % {"error": translated(error)})
            return HttpResponseRedirect(list_address)
        return HttpResponseRedirect(job_address(request, list_name, alias, name))
    return render_about(
        admin,
        request,
        "undo",
        title=label_of(change),
        move={"label": _("Undo"), "question": _QUESTIONS[row.kind]},
        who=visible(row.by) or "-",
        when=exact(row.acted_at),
        count=count,
        in_background=in_background,
        paused=jobs.pauses(alias) if in_background else [],
        job=jobs.posted_name(request),
        list_address=list_address,
    )


def _begin(request: HttpRequest, row: ActionRow, change: Change, name: str, count: int) -> None:
    """Begin a job that undoes an action."""
    selection = Selection(
        row.alias, list_of(row), to_epoch_ms(now_utc()), 0, conditions={"action": row.name}
    )  # for the words of the job: what it puts back, the action has noted
    with transaction.atomic(using=get_alias(row.alias).database):
        store_of(row.alias).begin_undo(Action(row.name, name_of_user(request)))
        jobs.start(name, request, selection, change, count)


def _undo(request: HttpRequest, row: ActionRow, change: Change) -> None:
    """Put the messages of an action back, page by page, and tell how many."""
    done = left = hidden = after = 0
    try:
        store = store_of(row.alias)
        store.begin_undo(Action(row.name, name_of_user(request)))
        while pks := store.changed_by(row.name, after):
            page = database_of(row.alias).transaction(partial(_put_back_and_log, request, row, pks))
            ids = [each.message_id for each in page.rows]
            if ids:
                record(operator_of(request), audited_name(change), row.alias, ids, moved=len(ids), action=row.name)
            done, left, hidden, after = done + len(ids), left + page.left, hidden + page.hidden, pks[-1]
    except DelayqError as error:
        messages.error(request, _("It stopped: %(error)s") % {"error": translated(error)})
    said = ngettext("Undone: %(count)d message.", "Undone: %(count)d messages.", done)
    messages.success(request, said % {"count": done})
    if left:
        if hidden:
            said = ngettext(
                "%(count)d message was left: it has started, was changed meanwhile, or is not yours to see.",
                "%(count)d messages were left: they have started, were changed meanwhile, or are not yours to see.",
                left,
            )
        else:
            said = ngettext(
                "%(count)d message was left: it has started, or was changed meanwhile.",
                "%(count)d messages were left: they have started, or were changed meanwhile.",
                left,
            )
        messages.warning(request, said % {"count": left})


def _put_back_and_log(request: HttpRequest, row: ActionRow, pks: list[int]) -> PageUndone:
    """Put a page of messages back, and log each."""
    page = put_back(request.user, row.alias, row.name, pks)
    log_rows(request.user.pk, page.rows, _UNDONE[row.kind], what=due_changes(row.alias, page.rows))
    return page
