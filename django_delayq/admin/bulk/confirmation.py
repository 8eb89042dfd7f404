"""Ask an operator before a move: the form of the confirmation page, marks of its rows, and the messages afterwards.

Rows that have changed since the page was shown are not moved. Another operator may have changed them, or the same form
was sent twice. "All that match" is evaluated when the action runs, so rows that began to match meanwhile are
included.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Literal

from django import forms
from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _, ngettext

from django_delayq.admin.bulk.changes import Change
from django_delayq.admin.formatting import now_utc, some, visible
from django_delayq.core.limits import interval_us_of
from django_delayq.models import ErrorMessage
from django_delayq.support.timestamps import DAY_MS, to_epoch_ms
from django_delayq.support.units import LONGEST_MS, to_ms

FIELD = "seen"
"""The name of the form's field with the marks of all rows.

It is one field, however many rows there are, because Django takes 1,000 fields at most.
"""

_MOST_DAYS = LONGEST_MS // DAY_MS

_CHANGING = ("due_at", "scheduled_at", "sent_at", "failures")
"""The columns that a mark is made of. One of them differs after each reschedule, replacement, failure or rescue."""


class ChangeForm(forms.Form):
    """A form of what an action does: `change` says it, once the form is valid."""

    change_move: Literal["send_again", "reschedule"]

    def change(self) -> Change:
        """Return the change that a valid form asks for."""
        raise NotImplementedError


class RateForm(ChangeForm):
    """How many are due in a time."""

    change_move = "send_again"
    rate = forms.CharField(
        label=_("At most"),
        max_length=40,
        required=False,
        help_text=_("Such as 10/s, 100/m or 1000/h: so many are due in that time. Empty for all at once."),
    )

    def clean_rate(self) -> str:
        """Return the rate, if it is one."""
        rate: str = self.cleaned_data["rate"].strip()
        try:
            if rate:
                interval_us_of(rate, "rate")
        except ValueError as error:
            raise forms.ValidationError(
                _("%(value)s is no rate; write it like 10/s, 100/m, 1000/h or 5000/d.") % {"value": rate}
            ) from error
        return rate

    def change(self) -> Change:
        return Change("send_again", rate=self.cleaned_data["rate"])


class RescheduleForm(ChangeForm):
    """A new due time: each message later or earlier by a length of time, or all that long from now, or at a time."""

    change_move = "reschedule"
    how = forms.ChoiceField(
        label=_("New due time"),
        choices=[
            ("shift", _("each later than it is now, by")),
            ("earlier", _("each earlier than it is now, but not before now, by")),
            ("reschedule", _("all of them from now, in")),
            ("at", _("all of them at a date and time")),
        ],
        initial="shift",
        widget=forms.RadioSelect,
    )
    length = forms.CharField(
        label=_("Length of time"),
        initial="1h",
        max_length=40,
        required=False,
        help_text=_("Such as 90s, 30m, 1h, 2h30m or 7d."),
    )
    at = forms.DateTimeField(
        label=_("Date and time"),
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        zone = timezone.get_current_timezone_name()
        self.fields["at"].help_text = _("In the time zone %(zone)s.") % {"zone": zone}

    def clean(self) -> dict[str, Any]:
        """Check the field that the choice needs. The other one is ignored, whatever it has."""
        asked: dict[str, Any] = self.cleaned_data
        if "how" in asked:
            needed, other = ("at", "length") if asked["how"] == "at" else ("length", "at")
            self.errors.pop(other, None)
            if needed not in self.errors:
                try:
                    asked[needed] = _TO_MS[needed](asked[needed])
                except forms.ValidationError as error:
                    self.add_error(needed, error)
        return asked

    def change(self) -> Change:
        """Return the change that a valid form asks for."""
        asked: dict[str, Any] = self.cleaned_data
        match asked["how"]:
            case "shift":
                return Change("shift", shift_ms=asked["length"])
            case "earlier":
                return Change("shift", shift_ms=-asked["length"])
            case "at":
                return Change("reschedule", at_ms=asked["at"])
        return Change("reschedule", delay_ms=asked["length"])


def _length_ms(text: str) -> int:
    try:
        return to_ms(text, "length")
    except ValueError as error:
        raise forms.ValidationError(
            _("%(value)s is no length of time; write it like 90s, 30m, 1h, 2h30m or 7d, at most %(days)s days.")
            % {"value": text, "days": _MOST_DAYS}
        ) from error


def _at_ms(at: datetime | None) -> int:
    if at is None:
        raise forms.ValidationError(_("Enter the date and time at which they are to be due."))
    aware = timezone.make_aware(at) if timezone.is_naive(at) else at  # naive if USE_TZ is off
    wait = aware - now_utc()
    if wait < timedelta(0):
        raise forms.ValidationError(_("This time is past. Choose a later one, or “Run now”."))
    if wait > timedelta(milliseconds=LONGEST_MS):
        raise forms.ValidationError(
            _("This time is too far away: at most %(days)s days from now.") % {"days": _MOST_DAYS}
        )
    return to_epoch_ms(aware)


_TO_MS: dict[str, Callable[[Any], int]] = {"length": _length_ms, "at": _at_ms}
"""What makes the value of each field into ms."""


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


def tell_moved(request: HttpRequest, done: Any, count: int, undo: str | SafeString = "") -> None:
    """Say how many messages moved, if any did, with the link that leads to the undo."""
    if count:
        said = ngettext("%(done)s: %(count)d message.", "%(done)s: %(count)d messages.", count)
        said %= {"done": done, "count": count}
        messages.success(request, format_html("{} {}", said, undo) if undo else said)


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
