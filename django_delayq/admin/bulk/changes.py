"""Change many rows, page by page in the order of their primary keys, by the methods that the commands use too."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from django.db.models import QuerySet
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.access import store_of
from django_delayq.admin.formatting import in_utc
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Action
from django_delayq.conf import get_alias
from django_delayq.core.limits import interval_us_of
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import to_text

TABLES: tuple[type[MessageRow], ...] = (ReadyMessage, ErrorMessage, FinishMessage)
"""The tables through which a message passes, in this order. Its primary key stays the same."""

KEY = "delayq.move"
"""The key of the messages of background jobs, which move other messages (see jobs.py)."""

PAGE = 500
"""How many rows are read, and moved, at a time."""


@dataclass(frozen=True, slots=True)
class Change:
    """The move to make: one of `LABELS`, or `shift`.

    `reschedule` makes messages due `delay_ms` from now, or at `at_ms` if that is given (a past time means now). `shift`
    makes each message due `shift_ms` later than it is, or earlier if that is negative, but not before now.
    `send_again` makes at most as many due in a time as `rate` says, if there is one.
    `cancel_running` also asks messages that run to end; `by` says who asks.
    If `undoes` names an action that made this move, it is undone, for messages that are still as it left them.
    `run_now` is only undone: it is made as a `reschedule` to now.
    """

    move: Literal[
        "rescue", "send_again", "cancel", "cancel_running", "reschedule", "run_now", "shift", "purge", "purge_failed"
    ]
    delay_ms: int = 0
    shift_ms: int = 0
    at_ms: int | None = None
    rate: str = ""
    by: str = ""
    undoes: str = ""


LABELS: dict[str, Any] = {
    "rescue": gettext_lazy("Rescue"),
    "send_again": gettext_lazy("Send again"),
    "cancel": gettext_lazy("Cancel"),
    "cancel_running": gettext_lazy("Cancel, also what runs"),
    "reschedule": gettext_lazy("Reschedule"),
    "run_now": gettext_lazy("Run now"),
    "purge": gettext_lazy("Purge"),
    "purge_failed": gettext_lazy("Purge"),
}


_PERMISSIONS = {
    "rescue": "rescue_message",
    "send_again": "send_again",
    "cancel": "cancel_message",
    "cancel_running": "cancel_message",
    "reschedule": "reschedule_message",
    "run_now": "reschedule_message",
    "purge": "delete_readymessage",  # Django's own, but its views would delete running messages, and count none
    "purge_failed": "delete_errormessage",
}


def permission_of(change: Change) -> str:
    """Return the permission of the app that a change needs, wherever it is asked for."""
    return _PERMISSIONS[action_name(change)]


def action_name(change: Change) -> str:
    """Return the name of the lists' action that a change belongs to, and whose permission it needs."""
    return "reschedule" if change.move == "shift" else change.move


def label_of(change: Change) -> str:
    """Return a change in words, with its length of time if it has one: `Reschedule (+1h)` makes each an hour later."""
    if change.undoes:
        return _("Undo: %(what)s") % {"what": LABELS[change.move]}
    if change == Change("reschedule"):
        return str(LABELS["run_now"])
    label = str(LABELS[action_name(change)])
    if change.rate:
        return f"{label} ({change.rate})"
    if change.move == "shift":
        return f"{label} ({_signed(change.shift_ms)})"
    if change.at_ms is not None:
        return f"{label} (= {in_utc(from_ms(change.at_ms))})"
    return f"{label} (= now + {to_text(change.delay_ms)})" if change.move == "reschedule" else label


def amount_of(change: Change) -> str | None:
    """Return the length of time of a change, or its rate, for the audit lines; None for a change that has neither."""
    if change.undoes:
        return None
    if change.rate:
        return change.rate
    if change.move == "shift":
        return _signed(change.shift_ms)
    if change.at_ms is not None:
        return in_utc(from_ms(change.at_ms))
    return f"now+{to_text(change.delay_ms)}" if change.move == "reschedule" else None


def audited_name(change: Change) -> str:
    """Return the name of a change in audit lines."""
    if change == Change("reschedule"):
        return "run_now"
    return f"undo {change.move}" if change.undoes else action_name(change)


def _signed(shift_ms: int) -> str:
    return f"{'-' if shift_ms < 0 else '+'}{to_text(abs(shift_ms))}"


class Page(NamedTuple):
    """Rows to move, how many rows were looked at to find them, and the primary key of the last row looked at."""

    rows: list[MessageRow]
    looked: int
    last: int


class Moved(NamedTuple):
    """The rows of a page that moved, and those that could not be moved."""

    rows: list[MessageRow]
    left: list[MessageRow]


def next_page(rows: QuerySet[Any], *, after: int, until: int) -> Page | None:
    """Return the next page of `rows` with primary keys over `after` and up to `until`; None if there is none."""
    page = list(rows.filter(pk__gt=after, pk__lte=until).defer("data").order_by("pk")[:PAGE])
    return Page(page, len(page), page[-1].pk) if page else None


def pages(rows: QuerySet[Any], *, until: int) -> Iterator[list[MessageRow]]:
    """Yield all of `rows` with a primary key up to `until`, page by page."""
    page = next_page(rows, after=0, until=until)
    while page is not None:
        yield page.rows
        page = next_page(rows, after=page.last, until=until)


def move(
    alias: str,
    rows: Sequence[MessageRow],
    change: Change,
    visible: QuerySet[Any],
    before: int = 0,
    action: Action | None = None,
) -> Moved:
    """Move a page of rows, and return which moved. `visible` are all rows of the table that the operator may see.

    `before` is how many moved before them: with a rate they are due after those. As a part of the `action` the move can
    be undone, if it is of a kind that can.
    """
    meant = rows
    if change.move in ("rescue", "send_again"):
        meant = _newest(alias, rows)
    elif change.move == "purge_failed":
        meant = _wholly_visible(alias, rows, visible)
    ids = list(dict.fromkeys(row.message_id for row in meant))
    answers = dict(zip(ids, by_ids(alias, change, before, action)(ids), strict=True)) if ids else {}
    moved = [row for row in meant if answers[row.message_id]]
    pks = {row.pk for row in moved}
    return Moved(moved, [row for row in rows if row.pk not in pks])


def last_pk(model: type[MessageRow], alias: str) -> int:
    """Return the greatest primary key of an alias's table, or 0. A move leaves out rows that are added later."""
    rows = model._default_manager.using(get_alias(alias).database)
    return rows.order_by("-pk").values_list("pk", flat=True).first() or 0


def by_ids(
    alias: str, change: Change, before: int = 0, action: Action | None = None
) -> Callable[[Sequence[str]], list[bool]]:
    """Return a function that takes ids, changes their messages, and returns for each whether it was changed.

    Raises `DelayqError` for a `shift` and for `send_again` if the alias has no store any more.
    """
    backend = get_backend(alias)
    queue = backend.queue
    if change.move == "send_again":
        interval_us = interval_us_of(change.rate, "rate") if change.rate else 0
        return partial(store_of(alias).send_again, interval_us=interval_us, first=before, action=action)
    if change.move == "shift":  # from its own due time, so that messages stay as far apart as they are
        return partial(store_of(alias).reschedule, by_ms=change.shift_ms, action=action)
    by_name: dict[str, Callable[[Sequence[str]], list[bool]]] = {
        "rescue": queue.rescue,
        "cancel": queue.cancel,
        "cancel_running": partial(queue.cancel, running_by=change.by),
        "reschedule": partial(queue.reschedule, delay_ms=change.delay_ms, at_ms=change.at_ms),
        "purge": queue.purge,
        "purge_failed": queue.purge_failed,
    }
    if backend.store is not None and action is not None:
        store = backend.store
        by_name |= {
            "cancel": partial(store.cancel, action=action),
            "cancel_running": partial(store.cancel, running_by=change.by, action=action),
            "reschedule": partial(store.reschedule, delay_ms=change.delay_ms, at_ms=change.at_ms, action=action),
        }
    return by_name[change.move]


def _wholly_visible(alias: str, page: Sequence[MessageRow], visible: QuerySet[Any]) -> list[MessageRow]:
    """Return the rows whose ids have only failures that are `visible`.

    `purge_failed` removes every failure of an id.
    """
    ids = {row.message_id for row in page}
    failed = ErrorMessage.objects.using(get_alias(alias).database).filter(alias=alias, message_id__in=ids)
    seen = set(visible.filter(message_id__in=ids).values_list("pk", flat=True))
    hidden = {id for pk, id in failed.values_list("pk", "message_id") if pk not in seen}
    return [row for row in page if row.message_id not in hidden]


def _newest(alias: str, page: Sequence[MessageRow]) -> list[MessageRow]:
    """Return the rows that are the newest of their ids in their table, because nothing would take an older one.

    So a message that has ended again since it was sent again is not sent once more. Messages of jobs are left out too,
    because the right to move messages does not include the rights of a job.
    """
    if not page:
        return []
    model = type(page[0])
    rows = model._default_manager.using(get_alias(alias).database).filter(
        alias=alias, message_id__in={row.message_id for row in page}
    )
    newest = dict(rows.order_by("ended_at", "pk").values_list("message_id", "pk"))
    return [row for row in page if newest.get(row.message_id) == row.pk and row.key != KEY]
