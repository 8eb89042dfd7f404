"""Undo what an action did, for messages that are still as it left them (see django_delayq/store/undo.py)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_delayq.admin.access import address, alias_of, store_of
from django_delayq.admin.bulk.changes import TABLES
from django_delayq.admin.visibility import sees_all, visible_rows
from django_delayq.conf import get_alias
from django_delayq.models import ActionRow, MessageRow, UndoRow


class PageUndone(NamedTuple):
    """The result of putting a page back: rows that were put back, as they were before, and how many messages were left.

    `hidden` is how many of those were left because the user may not see them. What another undo has looked at meanwhile
    counts nowhere.
    """

    rows: list[MessageRow]
    left: int
    hidden: int


def action_named(alias: str, name: str) -> ActionRow | None:
    """Return an action by its name; None if there is none, or none any more."""
    return ActionRow.objects.using(get_alias(alias).database).filter(alias=alias, name=name).first()


def changed_by(row: ActionRow) -> Any:
    """Return a query of the messages of an action that no undo has looked at."""
    return UndoRow.objects.using(row._state.db).filter(action_pk=row.pk)


def list_of(row: ActionRow) -> str:
    """Return the name of the list whose actions are of this kind."""
    return "finishmessage" if row.kind == "send_again" else "readymessage"


def undo_link(admin: Any, request: HttpRequest, name: str) -> str | SafeString:
    """Return a link to the page that undoes the action of this name; empty if it changed nothing that can be."""
    alias = alias_of(request)
    row = action_named(alias, name)
    if row is None or not changed_by(row).exists():
        return ""
    where = address(request, f"delayq_{admin.opts.model_name}_undo", alias, row.pk)
    return format_html('<a href="{}">{}</a>', where, _("Undo"))


def put_back(user: Any, alias: str, name: str, pks: Sequence[int]) -> PageUndone:
    """Put those messages of a page back that the user may see."""
    there: dict[int, MessageRow] = {}
    hidden: set[int] = set()
    for model in TABLES:
        rows = model._default_manager.using(get_alias(alias).database).filter(alias=alias, pk__in=pks)
        found = {each.pk: each for each in rows.only("alias", "key", "message_id", "due_at")}
        there |= found
        if found and not sees_all(user, alias):
            mine = visible_rows(user, model, alias).filter(pk__in=found)
            hidden |= found.keys() - set(mine.values_list("pk", flat=True))
    done = store_of(alias).put_back(name, [pk for pk in pks if pk not in hidden])
    row = action_named(alias, name) if hidden else None
    unseen = 0 if row is None else changed_by(row).filter(message_pk__in=hidden).count()
    return PageUndone([there[pk] for pk in sorted(done.pks) if pk in there], done.left + unseen, unseen)
