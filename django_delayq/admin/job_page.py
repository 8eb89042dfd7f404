"""The progress of a job in the background."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from django_delayq.admin import jobs
from django_delayq.admin.aliases import alias_of
from django_delayq.admin.conditions import NUL
from django_delayq.admin.message_page import address_of
from django_delayq.admin.moves import label_of
from django_delayq.admin.story import what_next
from django_delayq.models import ErrorMessage, FinishMessage

AGAIN_S = 2


def job_page(admin: Any, request: HttpRequest, name: str) -> HttpResponse:
    """How far a job has come. The page loads itself again while it goes on."""
    if not admin.has_view_permission(request):
        raise PermissionDenied
    found = None if NUL in name else jobs.progress(alias_of(request), name)
    if found is None:
        raise Http404(_("There is no such job any more."))
    job, row = found
    cancelled = isinstance(row, FinishMessage) and not job.over
    over = job.over or cancelled or isinstance(row, ErrorMessage)
    context = {
        **admin.admin_site.each_context(request),
        "title": _("In the background"),
        "opts": admin.opts,
        "media": admin.media,
        "job": job,
        "label": label_of(job.change),
        "failed": isinstance(row, ErrorMessage),
        "cancelled": cancelled,
        "message_address": address_of(admin, row),
        "row": row,
        "what_next": "" if over else what_next(row),
    }
    request.current_app = admin.admin_site.name
    headers = {} if over else {"Refresh": str(AGAIN_S)}
    return TemplateResponse(request, "admin/delayq/job.html", context, headers=headers)
