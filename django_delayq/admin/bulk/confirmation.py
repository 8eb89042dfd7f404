"""Ask an operator before a move: the form of the confirmation page, marks of its rows, and the messages afterwards.

Rows that have changed since the page was shown are not moved. Another operator may have changed them, or the same form
was sent twice. "All that match" is evaluated when the action runs, so rows that began to match meanwhile are
included.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _, ngettext

from django_delayq.admin.bulk.changes import Change
from django_delayq.admin.formatting import some, visible
from django_delayq.models import ErrorMessage
from django_delayq.support.units import LONGEST_MS, to_ms

FIELD = "seen"
"""The name of the form's field with the marks of all rows.

It is one field, however many rows there are, because Django takes 1,000 fields at most.
"""

_CHANGING = ("due_at", "scheduled_at", "sent_at", "failures")
"""The columns that a mark is made of. One of them differs after each reschedule, replacement, failure or rescue."""


class RescheduleForm(forms.Form):
    """A new due time: each message is due later by a length of time, or all are due that long from now."""

    how = forms.ChoiceField(
        label=_("New due time"),
        choices=[("shift", _("each later than it is now, by")), ("reschedule", _("all of them from now, in"))],
        initial="shift",
        widget=forms.RadioSelect,
    )
    length = forms.CharField(
        label=_("Length of time"), initial="1h", max_length=40, help_text=_("Such as 90s, 30m, 1h, 2h30m or 7d.")
    )

    def clean_length(self) -> int:
        """Return the length of time in ms."""
        try:
            return to_ms(self.cleaned_data["length"], "length")
        except ValueError as error:
            raise forms.ValidationError(
                _("%(value)s is no length of time; write it like 90s, 30m, 1h, 2h30m or 7d, at most %(days)s days.")
                % {"value": self.cleaned_data["length"], "days": LONGEST_MS // 86_400_000}
            ) from error

    def change(self) -> Change:
        """Return the change that a valid form asks for."""
        asked: dict[str, Any] = self.cleaned_data
        if asked["how"] == "shift":
            return Change("shift", shift_ms=asked["length"])
        return Change("reschedule", delay_ms=asked["length"])


def seen(request: HttpRequest, rows: QuerySet[Any]) -> str:
    """Return the marks for the form of the confirmation page: each row's primary key, and a digest of its state.

    If the page is shown again because of a wrong value in the form, the marks stay as they were.
    """
    return request.POST.get(FIELD) or " ".join(f"{pk}:{mark}" for pk, mark in _marks(rows).items())


def changed_since(request: HttpRequest, rows: QuerySet[Any]) -> list[int]:
    """Return the primary keys of the rows that have changed since the confirmation page was shown.

    The request has the marks that `seen` put into the form. A row without a mark counts as unchanged.
    """
    was = dict(each.split(":", 1) for each in request.POST.get(FIELD, "").split() if ":" in each)
    return [pk for pk, mark in _marks(rows).items() if was.get(str(pk), mark) != mark] if was else []


def mark_of(*values: object) -> str:
    """Return a digest of the values. Other values have another digest."""
    return sha256(repr(values).encode()).hexdigest()


def _marks(rows: QuerySet[Any]) -> dict[int, str]:
    fields = (*_CHANGING, "ended_at") if rows.model is ErrorMessage else _CHANGING
    return {pk: mark_of(*values)[:16] for pk, *values in rows.values_list("pk", *fields)}


def tell_moved(request: HttpRequest, done: Any, count: int) -> None:
    """Say how many messages moved, if any did."""
    if count:
        said = ngettext("%(done)s: %(count)d message.", "%(done)s: %(count)d messages.", count)
        messages.success(request, said % {"done": done, "count": count})


def tell_left(request: HttpRequest, ids: Sequence[str], gone: int) -> None:
    """Say which messages were not moved: those with these `ids`, and `gone` more that had left the table before."""
    count = len(ids) + gone
    if count:
        said = ngettext(
            "%(count)d message was left: it runs, has moved on, or its id waits again.",
            "%(count)d messages were left: they run, have moved on, or their ids wait again.",
            count,
        )
        messages.warning(request, _with_names(said % {"count": count}, ids))


def tell_changed(request: HttpRequest, ids: Sequence[str]) -> None:
    """Say which messages were left because they had changed since the confirmation page was shown."""
    if ids:
        said = ngettext(
            "%(count)d message was left: it has changed since you were asked. Look at it again.",
            "%(count)d messages were left: they have changed since you were asked. Look at them again.",
            len(ids),
        )
        messages.warning(request, _with_names(said % {"count": len(ids)}, ids))


def _with_names(said: str, ids: Sequence[str]) -> str:
    return f"{said} ({some([visible(id) for id in ids])})" if ids else said
