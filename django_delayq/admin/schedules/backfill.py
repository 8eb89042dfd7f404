"""Put the messages of a span that is over: asked for, counted, then confirmed."""

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from django_delayq.admin.access import address, may, operator_of, render_about
from django_delayq.admin.bulk.confirmation import FIELD, mark_of
from django_delayq.admin.formatting import number
from django_delayq.admin.log import log_schedules
from django_delayq.admin.schedules.occurrences import rule_in, zone_of_rule
from django_delayq.admin.schedules.page import found, upcoming
from django_delayq.admin.schedules.words import local_time_of
from django_delayq.api.schedules import backfill_delay_schedule
from django_delayq.conf import get_alias
from django_delayq.core.errors import DelayqError
from django_delayq.core.human_time import instant_of
from django_delayq.core.recurrence import within
from django_delayq.models import Schedule
from django_delayq.support.audit import record
from django_delayq.translation import translated

AT_ONCE = 1_000
"""The most occurrences that one request puts. In code `backfill_delay_schedule` puts more."""

SHOWN = 10

_DONE = gettext_lazy("Schedule backfilled")


class SpanForm(forms.Form):
    """From when until when, in the zone of the schedule."""

    start = forms.CharField(
        label=gettext_lazy("From"),
        max_length=40,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
    )
    until = forms.CharField(
        label=gettext_lazy("Until"), max_length=40, widget=forms.DateTimeInput(attrs={"type": "datetime-local"})
    )

    def __init__(self, posted: Any, row: Schedule) -> None:
        super().__init__(posted)
        self.rule, self.why_not = rule_in(row)
        self.row, self.zone = row, zone_of_rule(self.rule)
        self.fields["start"].help_text = _("In the time zone %(zone)s. Both ends are included.") % {"zone": self.zone}
        self.occurrences: list[datetime] = []

    def clean_start(self) -> datetime:
        """Return the instant of the start."""
        return self._instant("start")

    def clean_until(self) -> datetime:
        """Return the instant of the end."""
        return self._instant("until")

    def _instant(self, name: str) -> datetime:
        return instant_of(local_time_of(self.cleaned_data[name]), self.zone)

    def clean(self) -> dict[str, Any]:
        """Find the occurrences of the span."""
        asked: dict[str, Any] = self.cleaned_data
        if self.errors:
            return asked
        if self.rule is None:
            raise forms.ValidationError(self.why_not)
        if asked["until"] < asked["start"]:
            raise forms.ValidationError({"until": _("It is before the start.")})
        own = self.row.start_at, self.row.until_at
        try:
            self.occurrences = within(self.rule, *own, asked["start"], asked["until"], AT_ONCE + 1)
        except Exception as error:  # a calendar is the site's code
            raise forms.ValidationError(f"{type(error).__name__}: {translated(error)}") from error
        if not self.occurrences:
            self.add_error("until", _("Nothing occurs in this span."))
        elif len(self.occurrences) > AT_ONCE:
            told = _("These are over %(most)s occurrences; give a shorter span.")
            self.add_error("until", told % {"most": number(AT_ONCE)})
        return asked


def backfill_page(admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    """Ask for a span, show how many occurrences it has, and put their messages."""
    row = found(admin, request, object_id)
    if isinstance(row, HttpResponse):
        return row
    if not (may(request, "run_schedule") and admin.is_writable(request)):
        raise PermissionDenied
    form = SpanForm(request.POST or None, row)
    back = address(request, "delayq_schedule_change", row.alias, row.pk)
    count, mark, shown = 0, "", None
    if form.is_valid():
        count, mark = len(form.occurrences), mark_of(f"{row.rule} {form.occurrences}")
        if request.POST.get(FIELD) == mark and _backfilled(request, row, form):
            return HttpResponseRedirect(back)
        assert form.rule is not None  # noqa: S101  - the form is valid
        shown = upcoming(form.rule, lambda: form.occurrences[:SHOWN])
    return render_about(
        admin,
        request,
        "schedule_backfill",
        title=_("Backfill"),
        original=row,
        form=form,
        count=count,
        not_shown=max(0, count - SHOWN),
        upcoming=shown,
        seen_name=FIELD,
        seen=mark,
        back_address=back,
        list_address=address(request, "delayq_schedule_changelist", row.alias),
    )


def _backfilled(request: HttpRequest, row: Schedule, form: SpanForm) -> bool:
    """Put the messages, and log it. Return False if that failed: the form then says why."""
    start, until = form.cleaned_data["start"], form.cleaned_data["until"]
    count = len(form.occurrences)
    what = f"{count}, {start.isoformat()} – {until.isoformat()}"
    try:
        with transaction.atomic(get_alias(row.alias).database):
            backfill_delay_schedule(row.name, start=start, until=until, using=row.alias)
            log_schedules(request.user.pk, [row], _DONE, what={row.pk: what})
    except (DelayqError, ValueError) as error:
        form.add_error(None, translated(error))
        return False
    record(operator_of(request), "backfill_schedule", row.alias, name=row.name, start=start, until=until, count=count)
    told = ngettext("%(count)s message is due now.", "%(count)s messages are due now.", count)
    messages.success(request, told % {"count": number(count)})
    return True
