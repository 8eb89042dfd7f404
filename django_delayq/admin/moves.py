"""Moves of many rows: page by page in the order of their primary keys, by the verbs that the commands use too."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.brokers import get_broker
from django_delayq.conf import get_alias
from django_delayq.fields import to_epoch_ms
from django_delayq.models import ErrorMessage, MessageRow

Rows = Sequence[MessageRow]
Verb = Callable[[Sequence[str]], list[bool]]

PAGE = 500
"""How many rows are read, and moved, at a time."""


@dataclass(frozen=True, slots=True)
class Change:
    """What to do: one of `MOVES`, and for a new due time its length: from now, or from what it is."""

    move: str
    delay_ms: int = 0
    shift_ms: int = 0


LABELS: dict[str, Any] = {
    "rescue": gettext_lazy("Run again"),
    "cancel": gettext_lazy("Cancel"),
    "reschedule": gettext_lazy("Reschedule"),
    "shift": gettext_lazy("Reschedule"),
    "purge": gettext_lazy("Delete for good"),
    "purge_errors": gettext_lazy("Delete for good"),
}


def label_of(change: Change) -> str:
    """What people call it."""
    is_run_now = change == Change("reschedule")
    return _("Run now") if is_run_now else str(LABELS[change.move])


@dataclass(frozen=True, slots=True)
class Moved:
    """What was done with a page of rows: those that moved, those that were somewhere else by then, and the last pk."""

    rows: list[MessageRow]
    left: int
    last: int


def pages_moved(alias: str, rows: QuerySet[Any], change: Change, *, after: int = 0, until: int) -> Iterator[Moved]:
    """Move all of `rows` with a primary key over `after` and up to `until`, a page with each step."""
    moved = move_page(alias, rows, change, after=after, until=until)
    while moved is not None:
        yield moved
        moved = move_page(alias, rows, change, after=moved.last, until=until)


def move_page(alias: str, rows: QuerySet[Any], change: Change, *, after: int, until: int) -> Moved | None:
    """Move the next page of `rows`; None when there is none."""
    page = list(rows.filter(pk__gt=after, pk__lte=until).defer("data").order_by("pk")[:PAGE])
    if not page:
        return None
    moved = MOVES[change.move](alias, page, change)
    return Moved(moved, len(page) - len(moved), page[-1].pk)


def last_pk(model: type[MessageRow], alias: str) -> int:
    """The greatest primary key of a table: what comes later is none of a move's business."""
    rows = model._default_manager.using(get_alias(alias).database)
    return rows.order_by("-pk").values_list("pk", flat=True).first() or 0


def _rescue(alias: str, page: Rows, change: Change) -> list[MessageRow]:
    """The verb takes the newest row of an id: an older one of the page is left, and does not move that one instead."""
    rows = ErrorMessage.objects.using(get_alias(alias).database).filter(
        alias=alias, message_id__in={row.message_id for row in page}
    )
    newest = dict(rows.order_by("ended_at", "pk").values_list("message_id", "pk"))
    return _moved([row for row in page if newest.get(row.message_id) == row.pk], get_broker(alias).rescue)


def _cancel(alias: str, page: Rows, change: Change) -> list[MessageRow]:
    return _moved(page, get_broker(alias).cancel)


def _reschedule(alias: str, page: Rows, change: Change) -> list[MessageRow]:
    return _moved(page, partial(get_broker(alias).reschedule, delay_ms=change.delay_ms))


def _shift(alias: str, page: Rows, change: Change) -> list[MessageRow]:
    """Each from its own due time, so that what is due together stays together."""
    moved, due = [], attrgetter("due_at")
    for due_at, together in groupby(sorted(page, key=due), key=due):
        at_ms = to_epoch_ms(due_at) + change.shift_ms
        moved += _moved(list(together), partial(get_broker(alias).reschedule, at_ms=at_ms))
    return moved


def _purge(alias: str, page: Rows, change: Change) -> list[MessageRow]:
    return _moved(page, get_broker(alias).purge)


def _purge_errors(alias: str, page: Rows, change: Change) -> list[MessageRow]:
    return _moved(page, get_broker(alias).purge_errors)


def _moved(rows: Rows, verb: Verb) -> list[MessageRow]:
    """Those of the rows whose ids the verb moved."""
    ids = list(dict.fromkeys(row.message_id for row in rows))
    answers = dict(zip(ids, verb(ids), strict=True))
    return [row for row in rows if answers[row.message_id]]


MOVES: dict[str, Callable[[str, Rows, Change], list[MessageRow]]] = {
    "rescue": _rescue,
    "cancel": _cancel,
    "reschedule": _reschedule,
    "shift": _shift,
    "purge": _purge,
    "purge_errors": _purge_errors,
}
