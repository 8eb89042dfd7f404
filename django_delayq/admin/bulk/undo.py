"""Undo an action of the lists, for the messages that are still as it left them (see django_delayq/store/undo.py)."""

from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
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
)
from django_delayq.admin.bulk.changes import LABELS, TABLES, Change, permission_of
from django_delayq.admin.formatting import exact, number, visible
from django_delayq.admin.lists.bounded import is_primary_key
from django_delayq.admin.log import due_changes, log_rows
from django_delayq.admin.visibility import sees_all, visible_rows
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Action
from django_delayq.conf import get_alias
from django_delayq.core.errors import DelayqError
from django_delayq.models import ActionRow, MessageRow, UndoRow
from django_delayq.support.audit import record
from django_delayq.support.validation import short_repr
from django_delayq.translation import translated

MOST = 1_000
"""The most messages that a page puts back: as many as an action of the lists moves at once. Code may act on more."""

_UNDONE = {
    "cancel": gettext_lazy("Cancel undone"),
    "reschedule": gettext_lazy("Reschedule undone"),
    "send_again": gettext_lazy("Send again undone"),
}
"""What the log says of a message that was put back, by the kind of the action."""


def undo_link(admin: Any, request: HttpRequest, name: str) -> str | SafeString:
    """Return a link to the page that undoes the action of this name; empty if it changed nothing that can be."""
    alias = alias_of(request)
    row = ActionRow.objects.using(get_alias(alias).database).filter(alias=alias, name=name).first()
    if row is None or not _changed(row).exists():
        return ""
    where = address(request, f"delayq_{admin.opts.model_name}_undo", alias, row.pk)
    return format_html('<a href="{}">{}</a>', where, _("Undo"))


@redirected_on_outage
def undo_page(admin: Any, request: HttpRequest, pk: str) -> HttpResponse:
    """Ask whether to undo an action; by POST, undo it.

    That needs the permission of the action, and is for who did it, or for one who may see all messages.
    """
    if not admin.has_view_permission(request):
        raise PermissionDenied
    alias = alias_of(request)
    rows = ActionRow.objects.using(get_alias(alias).database).filter(alias=alias)
    row = rows.filter(pk=pk).first() if is_primary_key(pk) else None
    is_own = row is not None and row.by == name_of_user(request)
    if row is None or not (is_own or sees_all(request.user, alias)):
        raise Http404(_("There is no such action any more."))
    if _list_of(row) != admin.opts.model_name or not may(request, permission_of(Change(row.kind))):  # type: ignore[arg-type]  # kinds are moves
        raise PermissionDenied
    list_address = address(request, f"delayq_{admin.opts.model_name}_changelist", alias)
    count = _changed(row)[: MOST + 1].count()
    if count > MOST:
        said = _("This changed over %(most)s messages. Undo it in code: undo_delay_action(%(name)s)")
        messages.error(request, said % {"most": number(MOST), "name": short_repr(row.name)})
        return HttpResponseRedirect(list_address)
    if row.undone_at is not None and not count:
        said = _("This was undone already, by %(who)s.") % {"who": visible(row.undone_by) or "-"}
        messages.warning(request, said)
        return HttpResponseRedirect(list_address)
    if request.method == "POST":
        _undo(request, row)
        return HttpResponseRedirect(list_address)
    return render_about(
        admin,
        request,
        "undo",
        title=_("Undo"),
        what=LABELS[row.kind],
        who=visible(row.by) or "-",
        when=exact(row.acted_at),
        count=count,
        list_address=list_address,
    )


def _undo(request: HttpRequest, row: ActionRow) -> None:
    """Put the messages of an action back, page by page, and tell how many."""
    store = get_backend(row.alias).store
    if store is None:
        messages.error(request, _("This alias has no store any more, so nothing is undone."))
        return
    put_back = left = after = 0
    try:
        store.begin_undo(Action(row.name, name_of_user(request)))
        while pks := store.changed_by(row.name, after):
            ids = database_of(row.alias).transaction(partial(_put_back_and_log, request, store, row, pks))
            if ids:
                record(operator_of(request), f"undo {row.kind}", row.alias, ids, moved=len(ids), action=row.name)
            put_back, left, after = put_back + len(ids), left + len(pks) - len(ids), pks[-1]
    except DelayqError as error:
        messages.error(request, _("It stopped: %(error)s") % {"error": translated(error)})
    said = ngettext("Undone: %(count)d message.", "Undone: %(count)d messages.", put_back)
    messages.success(request, said % {"count": put_back})
    if left:
        said = ngettext(
            "%(count)d message was left: it has started, or was changed meanwhile.",
            "%(count)d messages were left: they have started, or were changed meanwhile.",
            left,
        )
        messages.warning(request, said % {"count": left})


def _put_back_and_log(request: HttpRequest, store: Any, row: ActionRow, pks: list[int]) -> list[str]:
    """Put back those messages of a page that the user may see, and log them. Return their ids."""
    there: dict[int, MessageRow] = {}
    seen: set[int] = set()
    for model in TABLES:
        rows = model._default_manager.using(get_alias(row.alias).database).filter(alias=row.alias, pk__in=pks)
        there |= {each.pk: each for each in rows.defer("data")}
        mine = visible_rows(request.user, model, row.alias).filter(pk__in=pks)
        seen |= set(mine.values_list("pk", flat=True))
    found = store.put_back(row.name, [pk for pk in pks if pk in seen or pk not in there])
    changed = [there[pk] for pk in sorted(found) if pk in there]
    what = due_changes(row.alias, changed)
    log_rows(request.user.pk, changed, _UNDONE[row.kind], what=what)
    return [each.message_id for each in changed]


def _changed(row: ActionRow) -> Any:
    """Return a query of the messages of an action that no undo has looked at."""
    return UndoRow.objects.using(row._state.db).filter(action_pk=row.pk)


def _list_of(row: ActionRow) -> str:
    """Return the name of the list whose actions are of this kind."""
    return "finishmessage" if row.kind == "send_again" else "readymessage"
