"""Lead from a page whose tables can't be read to the dashboard, which shows why and looks again by itself."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from django_delayq.admin.aliases import alias_of, database_of, query_of
from django_delayq.core.errors import DelayqError
from django_delayq.monitor import translated

View = Callable[..., HttpResponse]


def redirected_on_outage(view: View) -> View:
    """Wrap a view of an admin class, so that an error of its tables leads to the dashboard, which shows the error."""

    @wraps(view)
    def guarded(admin: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        alias = alias_of(request)
        try:
            with database_of(alias).available():
                return view(admin, request, *args, **kwargs)
        except DelayqError as error:
            messages.error(request, translated(error))
        dashboard = reverse("admin:app_list", args=[admin.opts.app_label], current_app=admin.admin_site.name)
        return HttpResponseRedirect(dashboard + query_of(alias))

    return guarded
