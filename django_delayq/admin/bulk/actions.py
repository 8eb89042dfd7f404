"""The actions of the lists, and the buttons of a message's page: asked for by POST, confirmed, then done and logged."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.access import (
    alias_of,
    database_of,
    may,
    message_address,
    name_of_user,
    operator_of,
    render_about,
)
from django_delayq.admin.bulk import changes, jobs
from django_delayq.admin.bulk.changes import (
    LABELS,
    TABLES,
    Change,
    Moved,
    amount_of,
    last_pk,
    pages,
    permission_of,
)
from django_delayq.admin.bulk.confirmation import (
    FIELD,
    ChangeForm,
    RateForm,
    RescheduleForm,
    changed_since,
    seen,
    tell_changed,
    tell_left,
    tell_moved,
)
from django_delayq.admin.bulk.jobs import is_all, job_address, selection_of
from django_delayq.admin.bulk.undo import undo_link
from django_delayq.admin.formatting import exact, visibly
from django_delayq.admin.lists.bounded import LIMIT_S, TooSlow, stopped_search, time_limit
from django_delayq.admin.log import changed, log_rows
from django_delayq.admin.message.page import state_of
from django_delayq.admin.visibility import visible_rows
from django_delayq.brokers.base import Action
from django_delayq.core.errors import DelayqError
from django_delayq.models import ErrorMessage, MessageRow
from django_delayq.support.audit import record
from django_delayq.translation import translated

AT_ONCE = 1_000
"""The most rows that are moved, or put back, while the operator waits. If there are more, a background job does it."""

_TRIED = ("rescue", "send_again", "run_now")
"""The moves of which one message can be moved first: it runs at once, so its end can be waited for."""

SHOWN = 10
"""The most messages that the confirmation names."""

_OWN_QUERYSET = gettext_lazy(
    "This list has a get_queryset of the site's own, which can't be repeated in the background: choose fewer messages, "
    'or let OPTIONS["rows_for"] narrow the rows.'
)


@dataclass(frozen=True)
class Move:
    """An action that moves rows: what it asks, what it does, and what it says afterwards."""

    name: str
    label: Any
    question: Any
    done: Any
    change: Change | None
    form: type[ChangeForm] | None = None
    deletes: bool = False

    @property
    def permission(self) -> str:
        """Return the permission of the app that the move needs."""
        return permission_of(self.change or Change(self.form.change_move))  # type: ignore[union-attr]  # one or the other


RESCUE = Move(
    "rescue",
    LABELS["rescue"],
    gettext_lazy("They are due at once, and their attempts are counted from 0 again."),
    gettext_lazy("Rescued"),
    Change("rescue"),
)
SEND_AGAIN = Move(
    "send_again",
    LABELS["send_again"],
    gettext_lazy("Each gets a new message with its id and its data; what it did once, it does again."),
    gettext_lazy("Sent again"),
    None,
    form=RateForm,
)
RUN_NOW = Move(
    "run_now",
    LABELS["run_now"],
    gettext_lazy("They are due at once, before their time."),
    gettext_lazy("Made due now"),
    Change("reschedule"),
)
RESCHEDULE = Move(
    "reschedule",
    LABELS["reschedule"],
    gettext_lazy("What runs already stays as it is."),
    gettext_lazy("Rescheduled"),
    None,
    form=RescheduleForm,
)
CANCEL = Move(
    "cancel",
    LABELS["cancel"],
    gettext_lazy("They never start, and are kept among the finished ones as cancelled. What runs already goes on."),
    gettext_lazy("Cancelled"),
    Change("cancel"),
)
CANCEL_RUNNING = Move(
    "cancel_running",
    LABELS["cancel_running"],
    gettext_lazy(
        "What waits never starts. What runs is asked to end within some seconds: async handlers and child processes "
        "are stopped, others have to look. What finishes all the same is finished."
    ),
    gettext_lazy("Cancelled, or asked to end"),
    Change("cancel_running"),
)
PURGE = Move(
    "purge",
    LABELS["purge"],
    gettext_lazy("They never start, and nothing is kept of them but a count. What runs already goes on."),
    gettext_lazy("Purged"),
    Change("purge"),
    deletes=True,
)
PURGE_ERRORS = Move(
    "purge_failed",
    LABELS["purge_failed"],
    gettext_lazy("Nothing is kept of them but a count, nor of what failed earlier under their ids."),
    gettext_lazy("Purged"),
    Change("purge_failed"),
    deletes=True,
)


def action_of(move: Move) -> Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse | None]:
    """Return an action of Django's admin that makes the move, for those who have its permission."""

    @admin.action(description=move.label)
    def act(model_admin: Any, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        if not may(request, move.permission):
            raise PermissionDenied
        return _act(model_admin, request, rows, move)

    act.__name__ = move.name
    return act


def _act(model_admin: Any, request: HttpRequest, rows: QuerySet[Any], move: Move) -> HttpResponse | None:
    """Return the page that asks for confirmation, or make the move once it was confirmed."""
    confirmed = "post" in request.POST or "one" in request.POST
    count = counted(rows)
    if count == 0 and stopped_search(request) is None and (is_all(request) or not confirmed):
        messages.warning(request, _("No message matches any more, so nothing was done."))
        return None
    is_typed = confirmed or "tried" in request.POST
    form = move.form(request.POST if is_typed else None) if move.form else None
    if not confirmed or (form and not form.is_valid()):
        return _confirmation(model_admin, request, rows, move, form, count)
    change = move.change or form.change()  # type: ignore[union-attr]  # a move has one or the other
    if change.move == "cancel_running":
        change = replace(change, by=name_of_user(request))
    if "one" in request.POST:
        return _one_first(model_admin, request, rows, move, form, change)
    name = jobs.posted_name(request)
    if is_all(request) and jobs.progress(alias_of(request), name):
        messages.info(request, _("This was asked for already, and is done once."))
        return HttpResponseRedirect(job_address(request, model_admin.opts.model_name, alias_of(request), name))
    if _is_for_a_worker(request, count):
        return _in_background(model_admin, request, name, change, count)
    _at_once(model_admin, request, rows, move, change)
    return None


def _one_first(
    model_admin: Any, request: HttpRequest, rows: QuerySet[Any], move: Move, form: ChangeForm | None, change: Change
) -> HttpResponse:
    """Move the first of the rows alone, and ask again for the rest: the page shows what became of it."""
    alias, first = alias_of(request), rows.order_by("pk").values_list("pk", flat=True).first()
    page = list(rows.filter(pk=first).defer("data"))
    action = _new_action(request)
    tried = ""
    try:
        done, changed_rows = database_of(alias).transaction(
            partial(_move_and_log, request, alias, page, move, change, 0, action)
        )
    except DelayqError as error:
        messages.error(request, _("It stopped: %(error)s") % {"error": translated(error)})
    else:
        ids = [row.message_id for row in done.rows]
        if ids:
            tried = ids[0]
            record(operator_of(request), move.name, alias, ids, moved=1, by=amount_of(change))
        tell_moved(request, move.done, len(ids), undo_link(model_admin, request, action.name))
        tell_left(request, [row.message_id for row in done.left], 0)
        tell_changed(request, [row.message_id for row in changed_rows])
    rest = rows.exclude(pk=first) if tried else rows
    return _confirmation(model_admin, request, rest, move, form, counted(rest), tried)


def _end_of(request: HttpRequest, id: str) -> tuple[MessageRow, str, str] | None:
    """Return the message that was moved first, as this user may see it: its row, its state and its address.

    Return None if there is none that the user may see.
    """
    alias = alias_of(request)
    found: list[MessageRow] = []
    for model in TABLES:
        if request.user.has_perm(f"delayq.view_{model._meta.model_name}"):
            rows = visible_rows(request.user, model, alias).filter(message_id=id).defer("data")
            found += rows.order_by("-pk")[:1]
    row = max(found, key=lambda row: row.pk, default=None)
    return None if row is None else (visibly(row), state_of(row), message_address(request, row))


def _is_for_a_worker(request: HttpRequest, count: int | None) -> bool:
    """Return whether a worker makes the move in a background job, rather than this request.

    A worker does if the action is for all matching rows and one of these holds: there are more than `AT_ONCE`, counting
    them took too long, the search stopped before the end, or the confirmation page has announced a job. In the last
    case the form has no marks of rows, so only the job's name shows that the form was sent twice.
    """
    is_many = count is None or count > AT_ONCE or stopped_search(request) is not None
    return is_all(request) and (is_many or ("job" in request.POST and not request.POST.get(FIELD)))


def counted(rows: QuerySet[Any]) -> int | None:
    """Return the number of rows, or None when counting takes too long."""
    try:
        with time_limit(rows.db):
            return rows.order_by().count()
    except TooSlow:
        return None


def _at_once(model_admin: Any, request: HttpRequest, rows: QuerySet[Any], move: Move, change: Change) -> None:
    alias = alias_of(request)
    gone = 0 if is_all(request) else _gone(request, rows)
    moved = 0
    left: list[str] = []
    since: list[str] = []
    database, action = database_of(alias), _new_action(request)
    try:
        for page in pages(rows, until=last_pk(model_admin.model, alias)):
            step = partial(_move_and_log, request, alias, page, move, change, moved, action)
            done, other = database.transaction(step)
            if done.rows:
                ids = [row.message_id for row in done.rows]
                record(operator_of(request), move.name, alias, ids, moved=len(ids), by=amount_of(change))
            moved += len(done.rows)
            left += [row.message_id for row in done.left]
            since += [row.message_id for row in other]
    except DelayqError as error:
        messages.error(request, _("It stopped: %(error)s") % {"error": translated(error)})
    tell_moved(request, move.done, moved, undo_link(model_admin, request, action.name))
    tell_left(request, left, gone)
    tell_changed(request, since)


def _new_action(request: HttpRequest) -> Action:
    """Return an action of the user with a name of its own, by which it can be undone."""
    return Action(uuid.uuid4().hex, name_of_user(request))


def _move_and_log(
    request: HttpRequest,
    alias: str,
    page: Sequence[MessageRow],
    move: Move,
    change: Change,
    before: int,
    action: Action,
) -> tuple[Moved, list[MessageRow]]:
    """Move the unchanged rows of a page and log them. Return what was moved, and the rows that have changed.

    If the log is in the same database, the caller's transaction has both. In another database the log's entries are
    committed first: there may be one too many, but none is missing.
    """
    done, others = _move_unchanged(request, alias, page, change, before, action)
    what = changed(alias, done.rows, change)
    log_rows(request.user.pk, done.rows, move.done, what=what, deleted=move.deletes)
    return done, others


def _move_unchanged(
    request: HttpRequest, alias: str, page: Sequence[MessageRow], change: Change, before: int, action: Action
) -> tuple[Moved, list[MessageRow]]:
    """Move the rows that have not changed since the confirmation page was shown.

    Return what was moved, and the rows that have changed.

    The rows are locked from here to the end of the caller's transaction. So if the same form is sent twice and two
    processes work on it at once, the second finds that the first has changed them.
    """
    model = type(page[0])
    rows = model._default_manager.using(database_of(alias).using).filter(pk__in=[row.pk for row in page])
    since = set(changed_since(request, rows.order_by("message_id").select_for_update()))
    others = [row for row in page if row.pk in since]
    visible = visible_rows(request.user, model, alias)
    unchanged = [row for row in page if row.pk not in since]
    return changes.move(alias, unchanged, change, visible, before, action), others


def _gone(request: HttpRequest, rows: QuerySet[Any]) -> int:
    """Return how many of the ticked rows the list no longer has: they have moved on, or no longer match its filter."""
    return len(set(request.POST.getlist(ACTION_CHECKBOX_NAME))) - rows.count()


def _in_background(
    model_admin: Any, request: HttpRequest, name: str, change: Change, count: int | None
) -> HttpResponse | None:
    stopped = stopped_search(request)
    try:
        if model_admin.has_own_queryset:
            raise ValueError(_OWN_QUERYSET)
        selection = selection_of(request, model_admin.model)
        total = counted(stopped.rows) if stopped else count
        jobs.start(name, request, selection, change, total or 0)
    except (DelayqError, ValueError) as error:
        messages.error(request, _("It did not begin: %(error)s") % {"error": translated(error)})
        return None
    return HttpResponseRedirect(job_address(request, model_admin.opts.model_name, alias_of(request), name))


def _confirmation(
    model_admin: Any,
    request: HttpRequest,
    rows: QuerySet[Any],
    move: Move,
    form: forms.Form | None,
    count: int | None,
    tried: str = "",
) -> HttpResponse:
    """Ask for confirmation. `tried` is the id of a message that was moved first: the page shows what became of it."""
    tried = tried or request.POST.get("tried", "")
    shown = list(rows.defer("data")[:SHOWN])
    in_background = _is_for_a_worker(request, count)
    return render_about(
        model_admin,
        request,
        "confirm",
        title=move.label,
        move=move,
        form=form,
        count=count,
        limit=LIMIT_S,
        stopped=stopped_search(request) if is_all(request) else None,
        in_background=in_background,
        paused=jobs.pauses(alias_of(request)) if in_background else [],
        job=jobs.posted_name(request) if is_all(request) else "",
        shown=[(visibly(row), _when(row)) for row in shown],
        not_shown=max(0, (count or 0) - len(shown)),
        is_all=is_all(request),
        selected=_ticked(request, rows, tried),
        tried=tried,
        end=_end_of(request, tried) if tried else None,
        may_try=move.name in _TRIED and not tried and count != 1,
        seen="" if in_background else seen(request, rows),
        action_checkbox_name=ACTION_CHECKBOX_NAME,
        list_address=request.get_full_path(),
    )


def _ticked(request: HttpRequest, rows: QuerySet[Any], tried: str) -> list[str]:
    """Return the primary keys for the form: those that were ticked, without the one that was moved first."""
    ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)
    if is_all(request):  # Django wants one, whichever it is
        return ticked[:1]
    return [str(pk) for pk in rows.values_list("pk", flat=True)] if tried else ticked


def _when(row: MessageRow) -> SafeString:
    """Return when a failed message was buried, or when any other is due, in words."""
    name, moment = (_("failed at"), row.ended_at) if isinstance(row, ErrorMessage) else (_("due"), row.due_at)
    return format_html("{} {}", name, exact(moment))
