"""The page of a background job: its progress, and the buttons that stop it or run it again."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from django_delayq.admin.aliases import alias_of, query_of
from django_delayq.admin.bulk import jobs
from django_delayq.admin.bulk.moves import action_name, label_of
from django_delayq.admin.lists.conditions import NUL
from django_delayq.admin.message.facts import what_next
from django_delayq.admin.message.page import address_of
from django_delayq.admin.outage_redirect import redirected_on_outage
from django_delayq.core.errors import DelayqError
from django_delayq.models import ErrorMessage, FinishMessage
from django_delayq.monitor import translated

AGAIN_S = 2


@redirected_on_outage
def job_page(admin: Any, request: HttpRequest, name: str) -> HttpResponse:
    """Render the progress of a job; by POST, stop it, or run it again if it failed.

    The page reloads itself while the job goes on. A user who may make the same move by the list's action may do both.
    """
    if not admin.has_view_permission(request):
        raise PermissionDenied
    found = None if NUL in name else jobs.progress(alias_of(request), name)
    if found is None or found[0].selection.model != admin.opts.model_name:
        raise Http404(_("There is no such job any more."))
    job, row = found
    cancelled = isinstance(row, FinishMessage) and not job.over
    failed = isinstance(row, ErrorMessage)
    over = job.over or cancelled or failed
    stopping = not over and jobs.is_told_to_stop(job)
    may_move = action_name(job.change) in {move.name for move in admin.buttons(request)}
    if request.method == "POST":
        if not may_move:
            raise PermissionDenied
        if "again" in request.POST:
            if failed:
                _tell(request, jobs.go_on, job, row)
        elif not (over or stopping):
            _tell(request, jobs.stop, job)
        return HttpResponseRedirect(address_of_job(admin, job.selection.alias, name))
    context = {
        **admin.admin_site.each_context(request),
        "title": _("In the background"),
        "opts": admin.opts,
        "media": admin.media,
        "job": job,
        "label": label_of(job.change),
        "failed": failed,
        "cancelled": cancelled,
        "stopping": stopping,
        "may_stop": may_move and not (over or stopping),
        "may_go_on": may_move and failed,
        "message_address": address_of(admin, row),
        "row": row,
        "what_next": "" if over else what_next(row),
    }
    request.current_app = admin.admin_site.name
    headers = {} if over else {"Refresh": str(AGAIN_S)}
    return TemplateResponse(request, "admin/delayq/job.html", context, headers=headers)


def address_of_job(admin: Any, alias: str, name: str) -> str:
    """Return the address of a job's page."""
    view = f"admin:delayq_{admin.opts.model_name}_job"
    return reverse(view, args=[name], current_app=admin.admin_site.name) + query_of(alias)


def _tell(request: HttpRequest, tell: Callable[..., None], *what: object) -> None:
    try:
        tell(request.user.pk, *what)
    except (DelayqError, ValueError) as error:
        messages.error(request, translated(error))
