"""The page that changes the payload of a message that waits, or of a failed one, which it runs again."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.access import (
    alias_of,
    database_of,
    message_address,
    operator_of,
    query_of,
    redirected_on_outage,
    render_about,
)
from django_delayq.admin.bulk.changes import KEY
from django_delayq.admin.bulk.confirmation import FIELD, mark_of
from django_delayq.admin.formatting import now_utc
from django_delayq.admin.log import hashed, log_rows
from django_delayq.admin.message.page import message_page
from django_delayq.admin.message.payload import kept_difference, payload_of, pretty, typed_json
from django_delayq.api.handlers import get_handler
from django_delayq.api.send import body_of, check_has_fields, header_of, send_delay_message, share_of
from django_delayq.brokers import get_backend
from django_delayq.conf import get_alias
from django_delayq.core.codec import decode_data, loads
from django_delayq.core.errors import DataMismatch, DelayqError
from django_delayq.core.lanes import split_lane
from django_delayq.models import ErrorMessage, MessageRow, PayloadDifference, ReadyMessage
from django_delayq.support.audit import record
from django_delayq.support.timestamps import to_epoch_ms
from django_delayq.translation import translated


class Edit(NamedTuple):
    """What a change of the payload does, and how it is called."""

    change: Callable[[Any, Any], None]
    """Changes a message, given as its row and the new data. Raises the errors of sending, and `ValueError`."""
    title: Any
    submit: Any
    done: Any
    logged: Any


class PayloadForm(forms.Form):
    """New data for a message, as JSON."""

    payload = forms.CharField(
        label=gettext_lazy("Payload"),
        strip=False,
        widget=forms.Textarea(attrs={"class": "vLargeTextField", "rows": 20, "spellcheck": "false"}),
        help_text=gettext_lazy("JSON, as the handler is to receive it. It is checked against the handler's type."),
    )

    def clean_payload(self) -> str:
        """Return the payload, if it is JSON: a handler's type would say something else of what is none."""
        return typed_json(self.cleaned_data["payload"])


@redirected_on_outage
def edit_page(admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    """Show the payload to change, check what was typed, and change the message as the `edit` of its list says."""
    try:
        with database_of(alias_of(request)).available():
            return _edit(admin, request, object_id)
    except DelayqError as error:
        if "payload" not in request.POST:
            raise
        return _page(admin, request, None, _refused(request, translated(error)))


def _edit(admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    if not (admin.has_view_permission(request) and admin.has_edit_permission(request)):
        raise PermissionDenied
    row = admin.get_object(request, object_id)
    if row is None:
        if "payload" not in request.POST:
            return message_page(admin, request, object_id)
        why = _("The message has moved on: nothing was changed. What you typed is kept here.")
        return _page(admin, request, None, _refused(request, why))
    if not admin.has_view_permission(request, row):
        raise PermissionDenied
    if row.key == KEY:
        raise PermissionDenied(_("What moves other messages can't be changed."))
    payload = payload_of(row, request)
    if payload.text is None or payload.masked:
        raise PermissionDenied(_("A payload that is hidden or masked can't be changed."))
    form = PayloadForm(request.POST or None, initial={"payload": payload.text})
    mark = mark_of(row.data)
    if form.is_bound and request.POST.get(FIELD) != mark:
        form.add_error(None, _("The payload was changed since you opened this page. What you typed is kept here."))
    elif form.is_valid() and _change(admin.edit, request, row, form, payload.text):
        messages.success(request, admin.edit.done)
        return HttpResponseRedirect(message_address(request, row))
    return _page(admin, request, row, form, now=payload.text, seen=mark)


def _refused(request: HttpRequest, why: str) -> PayloadForm:
    """Return a form with what was typed for a message that can't be changed, and the reason."""
    form = PayloadForm(request.POST)
    form.add_error(None, why)
    return form


def _page(admin: Any, request: HttpRequest, row: MessageRow | None, form: PayloadForm, **shown: str) -> HttpResponse:
    return render_about(
        admin,
        request,
        "edit",
        title=admin.edit.title,
        submit=admin.edit.submit,
        original=row,
        form=form,
        message_address=message_address(request, row) if row else "../change/" + query_of(alias_of(request)),
        seen_name=FIELD,
        **shown,
    )


def _change(edit: Edit, request: HttpRequest, row: MessageRow, form: PayloadForm, before: str) -> bool:
    """Change the message, and log it. Return False if that failed: the form then says why."""
    typed = form.cleaned_data["payload"]
    try:
        data = _checked(row, typed)
        difference = kept_difference(before, pretty(loads(typed)))  # made before the change, because it may fail
        using = get_alias(row.alias).database
        with transaction.atomic(using):
            edit.change(row, data)
            PayloadDifference.objects.using(using).create(
                alias=row.alias,
                message_id=row.message_id,
                message_pk=row.pk,
                at=to_epoch_ms(now_utc()),
                who=request.user.get_username(),
                mark=hashed(difference),
                difference=difference,
            )
            log_rows(request.user.pk, [row], edit.logged, what={row.pk: hashed(difference)})
    except DataMismatch as error:
        form.add_error("payload", translated(error))
    except (DelayqError, TypeError, ValueError) as error:
        form.add_error(None, translated(error))
    else:
        record(operator_of(request), "change_payload", row.alias, [row.message_id])
        return True
    return False


def _checked(row: MessageRow, typed: str) -> Any:
    """Return the data as the handler would receive it. Raises `DataMismatch` if the handler would refuse it."""
    handler = get_handler(row.alias, row.key)
    return decode_data(typed.encode()) if handler is None else handler.data_of(typed.encode(), row.version)


def _version_after(row: MessageRow) -> int | None:
    """Return the version of the data of a row once it is changed: the handler's, or the same if none is known here."""
    handler = get_handler(row.alias, row.key)
    return row.version if handler is None else header_of(handler, row.key, is_own=True).version


def _data_type(row: MessageRow) -> Any:
    handler = get_handler(row.alias, row.key)
    return handler.data_type if handler else Any


def rescue_with(row: ErrorMessage, data: Any) -> None:
    """Rescue a buried message and replace its data, or do neither. Its history is kept.

    Raises the errors of sending, and `ValueError` if it is not buried any more, its id waits again, another message
    with its id was buried later, or it failed again with other data.
    """
    moved_on = ValueError(
        _("The message has moved on, failed again later, or its id waits again: nothing was changed.")
    )
    from django_delayq.store import tags  # late, as in dashboard/urls.py

    expires: timedelta | None = None if row.expires_at is None else row.expires_at - row.scheduled_at
    using = get_alias(row.alias).database
    queue, priority = split_lane(row.queue)
    tags.add_to(database_of(row.alias), [(row.pk, row)])
    with transaction.atomic(using):
        if get_backend(row.alias).queue.rescue([row.message_id]) != [True]:
            raise moved_on
        rescued = ReadyMessage.objects.using(using).filter(alias=row.alias, message_id=row.message_id)
        ((pk, was, history),) = rescued.values_list("pk", "data", "history")
        if (pk, was) != (row.pk, row.data):  # `rescue` took the newest failure of the id, and that is another one
            raise moved_on
        send_delay_message(
            row.key,
            data,
            id=row.message_id,
            on_conflict="replace",
            id_scope="waiting",  # an earlier message with the id may have ended
            queue=queue,
            priority=priority,
            tag=row.tags,
            trace_id=row.trace_id,
            max_attempts=row.max_attempts,
            expires=expires,
            timeout=None if row.timeout_ms is None else timedelta(milliseconds=row.timeout_ms),
            at_most_once=row.at_most_once,
            using=row.alias,
        )
        # A message that replaces another has no history and was sent now. Nobody else sees the row yet.
        rescued.update(history=history, sent_at=row.sent_at, version=_version_after(row))


def change_waiting(row: ReadyMessage, data: Any) -> None:
    """Replace the data of a message that waits, and leave all else as it is.

    Raises the errors of sending, and `ValueError` if it runs or has ended, or its data was changed since it was read.
    """
    alias, handler = get_alias(row.alias), get_handler(row.alias, row.key)
    body, using = body_of(data, _data_type(row), alias), alias.database
    if handler is not None and handler.limits is not None:
        check_has_fields(body, handler.limits)
    share = row.share if handler is None or handler.shares is None else share_of(body, handler.shares)
    rows = ReadyMessage.objects.using(using).filter(pk=row.pk)
    with transaction.atomic(using):
        locked = rows.select_for_update().values_list("data", "token")
        if list(locked) != [(row.data, None)]:
            raise ValueError(_("The message runs, or has moved on: nothing was changed."))
        rows.update(data=body.decode(), version=_version_after(row), share=share)


RESCUE_CHANGED = Edit(
    rescue_with,
    gettext_lazy("Change the payload and rescue"),
    gettext_lazy("Change and rescue"),
    gettext_lazy("The payload was changed, and the message was rescued."),
    gettext_lazy("Payload changed and rescued"),
)
CHANGE = Edit(
    change_waiting,
    gettext_lazy("Change the payload"),
    gettext_lazy("Change"),
    gettext_lazy("The payload was changed."),
    gettext_lazy("Payload changed"),
)
