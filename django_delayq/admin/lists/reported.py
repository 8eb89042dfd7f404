"""Remember whether there is a report, because each page of the admin that lists the site's models needs to know."""

import time

from django.core.signals import setting_changed
from django.db import DatabaseError, InterfaceError, transaction
from django.http import HttpRequest
from django.urls import reverse

from django_delayq.admin.access import stored_aliases
from django_delayq.conf import get_alias
from django_delayq.models import ReportRow

ASK_AGAIN_S = 60.0
"""After so many seconds without a report the tables are asked again. Once there is a report, they never are."""

_found = False
_ask_at = 0.0


def has_report(request: HttpRequest, site_name: str) -> bool:
    """Return whether a report is stored, as far as this process knows.

    Only the app's own pages ask the tables. Pages of other apps need neither the query nor a database that may be away.
    """
    global _found, _ask_at
    if not _found and time.monotonic() >= _ask_at and _is_own_page(request, site_name):
        _ask_at = time.monotonic() + ASK_AGAIN_S
        _found = any(map(_has_rows, {get_alias(alias).database for alias in stored_aliases()}))
    return _found


def _is_own_page(request: HttpRequest, site_name: str) -> bool:
    return request.path.startswith(reverse("admin:app_list", args=["delayq"], current_app=site_name))


def _has_rows(database: str) -> bool:
    try:
        with transaction.atomic(database):  # so that a missing table does not spoil the transaction of the request
            return ReportRow.objects.using(database).exists()
    except (DatabaseError, InterfaceError):  # the page itself says what is wrong
        return False


def _forget(*, setting: str, **kwargs: object) -> None:
    global _found, _ask_at
    if setting == "DELAYQ":
        _found, _ask_at = False, 0.0


setting_changed.connect(_forget, dispatch_uid="delayq.reported")
