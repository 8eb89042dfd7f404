"""Pause and resume a queue or a key, each on a page of its own that asks first and works without a script."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.models import LogEntry
from django.db import router, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.access import alias_of, back, check_may, operator_of, render_page
from django_delayq.admin.log import in_english, log_text
from django_delayq.admin.visibility import check_sees_all
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Pause
from django_delayq.core.errors import DelayqError
from django_delayq.models import ReadyMessage
from django_delayq.monitor import now_ms
from django_delayq.support.audit import record
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import to_ms
from django_delayq.support.validation import MAX_NAME
from django_delayq.translation import translated


class PauseForm(forms.Form):
    """A pause to make: of a queue or a key, with a reason and an end."""

    queue = forms.CharField(
        label=gettext_lazy("Queue"),
        required=False,
        strip=False,
        max_length=MAX_NAME,
        help_text=gettext_lazy("Empty: in every queue."),
    )
    key = forms.CharField(
        label=gettext_lazy("Key"),
        required=False,
        strip=False,
        max_length=MAX_NAME,
        help_text=gettext_lazy("Empty: every key of the queue."),
    )
    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=MAX_NAME)
    length = forms.CharField(
        label=gettext_lazy("For how long"),
        required=False,
        max_length=20,
        help_text=gettext_lazy("Such as 30m, 2h30m or 7d. Empty: until it is resumed."),
    )

    def clean_length(self) -> int | None:
        """Return the length of time in ms, or None for a pause without an end."""
        text = self.cleaned_data["length"]
        try:
            return to_ms(text, _("For how long"), least_ms=1) if text else None
        except ValueError as error:
            raise forms.ValidationError(translated(error)) from error


def pause_view(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Ask for a reason, then pause."""
    check_may(site, request, "pause_queue")
    check_sees_all(request)
    alias = alias_of(request)
    named = {name: request.GET.get(name, "") for name in ("queue", "key")}
    form = PauseForm(request.POST if request.method == "POST" else None, initial=named)
    if form.is_valid() and _paused(request, alias, form):
        return back(request, alias)
    return render_page(site, request, "pause", title=_("Pause"), form=form)


def _paused(request: HttpRequest, alias: str, form: PauseForm) -> bool:
    """Make the pause that a valid form asks for. Return False if that failed: the form then says why."""
    asked = form.cleaned_data
    try:
        until_ms = None if asked["length"] is None else now_ms(alias) + asked["length"]
        pause = Pause(asked["queue"] or None, asked["key"] or None, asked["reason"], until_ms)
        until = "" if until_ms is None else f"{from_ms(until_ms):%Y-%m-%d %H:%M:%S} UTC"
        with _logging(request, pause, gettext_lazy("Paused: %(reason)s"), until and f", until {until}"):
            get_backend(alias).presence.pause(pause)
    except (ValueError, DelayqError) as error:
        form.add_error(None, translated(error))
        return False
    _record(request, "pause", pause, until=until or None)
    messages.success(request, _("Paused %(what)s. What runs, runs to its end.") % {"what": translated(pause.names)})
    return True


def resume_view(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Ask for confirmation, then resume."""
    check_may(site, request, "pause_queue")
    check_sees_all(request)
    alias = alias_of(request)
    queue, key = request.GET.get("queue") or None, request.GET.get("key") or None
    try:
        found = [pause for pause in get_backend(alias).presence.pauses() if (pause.queue, pause.key) == (queue, key)]
        if not found:
            messages.warning(request, _("It is not paused any more."))
            return back(request, alias)
        if request.method == "POST":
            with _logging(request, found[0], gettext_lazy("Resumed; it was paused for: %(reason)s")):
                get_backend(alias).presence.resume(queue, key)
            _record(request, "resume", found[0])
            messages.success(request, _("Resumed %(what)s.") % {"what": translated(found[0].names)})
            return back(request, alias)
    except DelayqError as error:
        messages.error(request, translated(error))
        return back(request, alias)
    what = translated(found[0].names)
    return render_page(site, request, "resume", title=_("Resume"), pause=found[0], what=what)


@contextmanager
def _logging(request: HttpRequest, pause: Pause, said: Any, more: str = "") -> Iterator[None]:
    """Log what the block does to a pause. If the block raises, the log entry is rolled back."""
    what = translated(pause.names)  # translated now, because the admin's index shows it unchanged
    with in_english():
        message = said % {"reason": pause.reason}
    with transaction.atomic(using=router.db_for_write(LogEntry)):
        log_text(request.user.pk, ReadyMessage, what, message + more)
        yield


def _record(request: HttpRequest, verb: str, pause: Pause, **facts: object) -> None:
    named = {"queue": pause.queue, "key": pause.key, "reason": pause.reason}
    record(operator_of(request), verb, alias_of(request), **named, **facts)
