"""The errors of messages as a viewer may see them: whole, or without what may quote data."""

from collections.abc import Iterable
from dataclasses import replace

from django.db.models import Model
from django.http import HttpRequest

from django_delayq.admin.access import may
from django_delayq.core.history import PastAttempt, changed
from django_delayq.core.requests import Info
from django_delayq.core.transitions import without_values
from django_delayq.models import ErrorMessage, MessageRow, ReportRow, Schedule


def may_view_errors(request: HttpRequest) -> bool:
    """Return whether this user may see the texts of errors, and tracebacks."""
    return may(request, "view_error")


def hide_errors(request: HttpRequest, rows: Iterable[Model]) -> None:
    """Remove from the errors of these rows what this user may not see. Rows so changed must not be saved."""
    if not may_view_errors(request):
        for row in rows:
            _hide(row)


def info_for(request: HttpRequest, info: Info) -> Info:
    """Return the facts of a message without a row, with as much of its error as this user may see."""
    return info if may_view_errors(request) else replace(info, error=without_values(info.error), detail="")


def _hide(row: Model) -> None:
    if isinstance(row, ReportRow | ErrorMessage):
        row.fingerprint = row.fingerprint.partition(" in ")[0]
    if isinstance(row, Schedule):
        row.error = without_values(row.error)
    if not isinstance(row, MessageRow):
        return
    loaded = {field.attname for field in row._meta.concrete_fields} - row.get_deferred_fields()
    row.error = without_values(row.error)
    if "history" in loaded:
        row.history = changed(row.history, _without_values)
    if isinstance(row, ErrorMessage) and "detail" in loaded:
        row.detail = ""


def _without_values(past: PastAttempt) -> PastAttempt:
    return replace(past, error=without_values(past.error), traceback="")
