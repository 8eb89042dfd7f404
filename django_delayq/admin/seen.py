"""How rows were when an operator was asked, so that what has changed since is left, and not changed again: by another,
or by the same answer that was sent twice.

What matches a filter since then was not asked about, and is moved too: all that match are those that match when it is
done.
"""

from hashlib import sha256
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest

from django_delayq.models import ErrorMessage

FIELD = "seen"
"""The name of a form's field. It is one, however many rows were asked about: Django takes 1,000 fields at most."""

_CHANGING = ("due_at", "scheduled_at", "sent_at", "failures")
"""One of these differs after each reschedule, replacement, failure or rescue."""


def seen(request: HttpRequest, rows: QuerySet[Any]) -> str:
    """What to send along with the question: each row's primary key, and a mark of how it is.

    Asked once more, for a wrong value in a form, it stays as it was.
    """
    return request.POST.get(FIELD) or " ".join(f"{pk}:{mark}" for pk, mark in _marks(rows).items())


def changed_since(request: HttpRequest, rows: QuerySet[Any]) -> list[int]:
    """The primary keys of those rows that are not as they were. What was not asked about has not changed."""
    was = dict(each.split(":", 1) for each in request.POST.get(FIELD, "").split() if ":" in each)
    return [pk for pk, mark in _marks(rows).items() if was.get(str(pk), mark) != mark] if was else []


def mark_of(*values: object) -> str:
    """The same for the same values alone."""
    return sha256(repr(values).encode()).hexdigest()


def _marks(rows: QuerySet[Any]) -> dict[int, str]:
    fields = (*_CHANGING, "ended_at") if rows.model is ErrorMessage else _CHANGING
    return {pk: mark_of(*values)[:16] for pk, *values in rows.values_list("pk", *fields)}
