"""Mark how rows were when an operator was asked, so that rows that have changed since are left.

They may have been changed by another operator, or by the same answer sent twice. "All that match" is evaluated when
the action runs, so rows that began to match meanwhile are included.
"""

from hashlib import sha256
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest

from django_delayq.models import ErrorMessage

FIELD = "seen"
"""The name of a form's field.

It is one field, however many rows there are, because Django takes 1,000 fields at most.
"""

_CHANGING = ("due_at", "scheduled_at", "sent_at", "failures")
"""One of these differs after each reschedule, replacement, failure or rescue."""


def seen(request: HttpRequest, rows: QuerySet[Any]) -> str:
    """Return the value to send along with the question: the primary key of each row, and a mark of its state.

    If the question is asked again because of a wrong value in the form, the marks stay as they were.
    """
    return request.POST.get(FIELD) or " ".join(f"{pk}:{mark}" for pk, mark in _marks(rows).items())


def changed_since(request: HttpRequest, rows: QuerySet[Any]) -> list[int]:
    """Return the primary keys of the rows that have changed. A row that was not asked about has not."""
    was = dict(each.split(":", 1) for each in request.POST.get(FIELD, "").split() if ":" in each)
    return [pk for pk, mark in _marks(rows).items() if was.get(str(pk), mark) != mark] if was else []


def mark_of(*values: object) -> str:
    """Return a digest, which is the same only for the same values."""
    return sha256(repr(values).encode()).hexdigest()


def _marks(rows: QuerySet[Any]) -> dict[int, str]:
    fields = (*_CHANGING, "ended_at") if rows.model is ErrorMessage else _CHANGING
    return {pk: mark_of(*values)[:16] for pk, *values in rows.values_list("pk", *fields)}
