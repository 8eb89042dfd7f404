"""Read the rows of the store's three tables, for a look at the end."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, QuerySet

from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage

SHOWN = 3


@dataclass(frozen=True)
class Kind:
    """Rows of a table that say the same: their number, and the last few as (id, key, due)."""

    says: str
    count: int
    last: list[tuple[str, str, datetime]]


def kinds_by_table() -> Iterator[tuple[str, list[Kind]]]:
    """Yield each table with its kinds of rows: those that wait or run, ended well or were cancelled, and failed."""
    yield from (
        ("delayq_ready", _kinds(ReadyMessage.objects.all(), "queue")),
        ("delayq_finish", _kinds(FinishMessage.objects.all(), "outcome")),
        ("delayq_error", _kinds(ErrorMessage.objects.all(), "error")),
    )


def _kinds(rows: QuerySet[Any], column: str) -> list[Kind]:
    kinds = []
    for says, count in rows.values_list(column).annotate(Count("pk")).order_by(column):
        last = rows.filter(**{column: says}).order_by("-due_at", "-pk")[:SHOWN]
        kinds.append(Kind(says, count, list(last.values_list("message_id", "key", "due_at"))))
    return kinds
