"""Pause and resume a queue or a key, each on a page of its own that asks first and works without a script."""

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.access import address, alias_of, back, check_may
from django_delayq.admin.log import in_english, log_selection
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Pause
from django_delayq.core.errors import DelayqError
from django_delayq.models import ReadyMessage
from django_delayq.monitor import now_ms, translated
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import to_ms
from django_delayq.support.validation import MAX_NAME


class PauseForm(forms.Form):
    """A pause to make: of a queue or a key, with a reason and an end. A valid form has the `pause`."""

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

    def __init__(self, alias: str, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.alias = alias

    def clean_length(self) -> int | None:
        """Return the length of time in ms."""
        text = self.cleaned_data["length"]
        try:
            return to_ms(text, _("For how long"), least_ms=1) if text else None
        except ValueError as error:
            raise forms.ValidationError(translated(error)) from error

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.errors:
            try:
                self.pause = self._pause(**cleaned)
            except (ValueError, DelayqError) as error:
                raise forms.ValidationError(translated(error)) from error
        return cleaned

    def _pause(self, queue: str, key: str, reason: str, length: int | None) -> Pause:
        until_ms = None if length is None else now_ms(self.alias) + length
        return Pause(queue or None, key or None, reason, until_ms)


def pause_view(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Ask for a reason, then pause."""
    check_may(site, request, "pause_queue")
    alias = alias_of(request)
    if request.method == "POST":
        form = PauseForm(alias, request.POST)
        if form.is_valid() and _paused(request, alias, form):
            return back(request, alias)
    else:
        form = PauseForm(alias, initial={name: request.GET.get(name, "") for name in ("queue", "key")})
    return _page(site, request, "admin/delayq/pause.html", title=_("Pause"), form=form)


def _paused(request: HttpRequest, alias: str, form: PauseForm) -> bool:
    pause = form.pause
    try:
        get_backend(alias).presence.pause(pause)
    except DelayqError as error:
        form.add_error(None, translated(error))
        return False
    with in_english():
        said = _("Paused: %(reason)s") % {"reason": pause.reason}
    until = "" if pause.until_ms is None else f", until {from_ms(pause.until_ms):%Y-%m-%d %H:%M:%S} UTC"
    what = translated(pause.names)  # the admin's index shows it as it is kept
    log_selection(request.user.pk, ReadyMessage, what, said + until)
    messages.success(request, _("Paused %(what)s. What runs, runs to its end.") % {"what": what})
    return True


def resume_view(site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Ask for confirmation, then resume."""
    check_may(site, request, "pause_queue")
    alias = alias_of(request)
    queue, key = request.GET.get("queue") or None, request.GET.get("key") or None
    try:
        found = [pause for pause in get_backend(alias).presence.pauses() if (pause.queue, pause.key) == (queue, key)]
        if not found:
            messages.warning(request, _("It is not paused any more."))
            return back(request, alias)
        if request.method == "POST":
            get_backend(alias).presence.resume(queue, key)
            with in_english():
                said = _("Resumed; it was paused for: %(reason)s") % {"reason": found[0].reason}
            log_selection(request.user.pk, ReadyMessage, translated(found[0].names), said)
            messages.success(request, _("Resumed %(what)s.") % {"what": translated(found[0].names)})
            return back(request, alias)
    except DelayqError as error:
        messages.error(request, translated(error))
        return back(request, alias)
    return _page(
        site, request, "admin/delayq/resume.html", title=_("Resume"), pause=found[0], what=translated(found[0].names)
    )


def _page(site: AdminSite, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
    index = address(request, "app_list", alias_of(request), "delayq")
    return TemplateResponse(request, template, {**site.each_context(request), "index_address": index, **context})
