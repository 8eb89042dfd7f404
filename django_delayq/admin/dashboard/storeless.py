"""The dashboard's lists of messages that may need a person, for an alias without a store, which has no other lists."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.models import LogEntry
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.access import address, alias_of, back, check_may, may, operator_of, render_page
from django_delayq.admin.bulk.changes import LABELS, Change, by_ids, permission_of
from django_delayq.admin.bulk.confirmation import tell_left, tell_moved
from django_delayq.admin.formatting import moment
from django_delayq.admin.log import Chosen, correct, log_selection
from django_delayq.admin.message.errors import info_for
from django_delayq.admin.visibility import check_sees_all
from django_delayq.conf import get_alias
from django_delayq.core.errors import DelayqError
from django_delayq.models import ErrorMessage, MessageRow, ReadyMessage
from django_delayq.monitor import storeless
from django_delayq.monitor.storeless import LOOKED_THROUGH, PAGE, Page
from django_delayq.support.audit import record
from django_delayq.translation import translated


@dataclass(frozen=True, slots=True)
class Move:
    """An action on chosen messages: its effect, and the words afterwards."""

    name: str
    label: Any
    done: Any
    model: type[MessageRow]
    change: Change
    deletes: bool = True

    @property
    def permission(self) -> str:
        """Return the permission of the app that the move needs."""
        return permission_of(self.change)


_PURGED = gettext_lazy("Purged")
RESCUE = Move("rescue", LABELS["rescue"], gettext_lazy("Rescued"), ErrorMessage, Change("rescue"), deletes=False)
PURGE_FAILED = Move("purge_failed", LABELS["purge_failed"], _PURGED, ErrorMessage, Change("purge_failed"))
PURGE = Move("purge", LABELS["purge"], _PURGED, ReadyMessage, Change("purge"))
MOVES = {move.name: move for move in (RESCUE, PURGE_FAILED, PURGE)}
KINDS = ("buried", "retried", "parked")
_DIGITS = 4


def groups(request: HttpRequest, alias: str, patience_s: float) -> list[dict[str, Any]]:
    """Return the lists of an alias without a store that the user may see and that have messages.

    An alias with a store has none. Raises `DelayqError` if the broker does not answer.
    """
    may_see_errors, may_see_waiting = may(request, "view_errormessage"), may(request, "view_readymessage")
    if get_alias(alias).store is not None or not (may_see_errors or may_see_waiting):
        return []
    found = storeless(alias, _pages(request), patience_s=patience_s)
    group = partial(_group, request, alias)
    shown = []
    if may_see_errors:
        moves = _allowed(request, RESCUE, PURGE_FAILED)
        shown.append(group("buried", _("Failed messages, newest first"), _("Failed"), found.buried, moves))
    if may_see_waiting:
        moves = _allowed(request, PURGE)
        note = _("Those among the next %(number)d of each queue.") % {"number": LOOKED_THROUGH}
        title = _("Messages that wait for their next attempt")
        shown.append(group("retried", title, _("Due"), found.retried, moves, note))
        shown.append(group("parked", _("Messages that no live worker asks for"), _("Due"), found.parked, moves))
    return [group for group in shown if group["rows"] or group["before"]]


def _group(
    request: HttpRequest, alias: str, name: str, title: str, when: str, page: Page, moves: list[Move], note: str = ""
) -> dict[str, Any]:
    """Return one of the lists: a page of messages, what the user may do to them, and the addresses of other pages."""

    def beside(number: int) -> str:
        pages = {kind: str(at) for kind, at in {**_pages(request), name: number}.items() if at > 1}
        return f"{address(request, 'app_list', alias, 'delayq', **pages)}#delayq-{name}"

    return {
        "name": name,
        "title": title,
        "when": when,
        "rows": [
            (info_for(request, info), moment(info.buried_ms if name == "buried" else info.due_ms))
            for info in page.infos
        ],
        "moves": moves,
        "page": page,
        "before": beside(page.number - 1) if page.number > 1 else "",
        "after": "" if page.is_last else beside(page.number + 1),
        "note": note,
    }


def _pages(request: HttpRequest) -> dict[str, int]:
    """Return the number of the page that the address gives for each kind of list.

    Leave out what is no number, or too long.
    """
    asked = {kind: request.GET.get(kind, "") for kind in KINDS}
    return {kind: int(text) for kind, text in asked.items() if text.isdecimal() and len(text) <= _DIGITS}


def storeless_view(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Ask for confirmation, and move the chosen messages once it is given."""
    move = MOVES.get(request.POST.get("move", ""))
    if move is None:
        raise BadRequest("No such move.")
    check_may(site, request, move.permission)
    check_may(site, request, f"view_{move.model._meta.model_name}")
    check_sees_all(request)
    if get_alias(alias_of(request)).store is not None:  # rows have their own actions, with more questions
        raise BadRequest("This alias has a store.")
    alias, ids = alias_of(request), list(dict.fromkeys(request.POST.getlist("id")[: 2 * PAGE]))
    if not ids:
        messages.warning(request, _("No message was chosen."))
        return back(request, alias)
    if "sure" not in request.POST:
        return render_page(site, request, "storeless", title=move.label, move=move, ids=ids)
    # Written before, and corrected afterwards, because a broker has no part in the log's transaction.
    asked = f"{move.name}: asked for {len(ids)} messages"
    entry = log_selection(request.user.pk, move.model, Chosen(alias, ids=ids), asked)
    try:
        answers = by_ids(alias, move.change)(ids)
    except DelayqError as error:
        messages.error(request, translated(error))
    else:
        _tell(request, move, dict(zip(ids, answers, strict=True)), entry)
    return back(request, alias)


def _tell(request: HttpRequest, move: Move, answers: Mapping[str, bool], entry: LogEntry) -> None:
    moved = [id for id, is_moved in answers.items() if is_moved]
    if moved:
        alias = alias_of(request)
        correct(entry.pk, f"{move.name}: {len(moved)} of {len(answers)} messages", Chosen(alias, ids=moved))
        record(operator_of(request), move.name, alias, moved, moved=len(moved))
    else:
        entry.delete()
    tell_moved(request, move.done, len(moved))
    tell_left(request, [id for id, is_moved in answers.items() if not is_moved], gone=0)


def _allowed(request: HttpRequest, *moves: Move) -> list[Move]:
    return [move for move in moves if may(request, move.permission)]
