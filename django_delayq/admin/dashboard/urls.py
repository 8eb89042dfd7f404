"""Say where the parts of the dashboard are.

The views are imported when the first of them is asked for: the figures need most of the package, which a process that
only starts, such as `migrate` or a worker, does without.
"""

from functools import partial

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.views.decorators.http import require_POST, require_safe


def urls(site: AdminSite) -> list[URLPattern]:
    """Return the URL patterns of the dashboard's parts. A list has them below its own address.

    Each view checks the permission that it needs.
    """
    views = {
        "": require_safe(partial(_fragment, site)),
        "pause/": partial(_pause, site),
        "resume/": partial(_resume, site),
        "storeless/": require_POST(partial(_storeless, site)),
    }
    return [
        path(f"dashboard/{route}", site.admin_view(view), name=f"delayq_dashboard{route and '_' + route[:-1]}")
        for route, view in views.items()
    ]


def _fragment(site: AdminSite, request: HttpRequest) -> HttpResponse:
    from django_delayq.admin.dashboard.page import fragment_view

    return fragment_view(site, request)


def _pause(site: AdminSite, request: HttpRequest) -> HttpResponse:
    from django_delayq.admin.dashboard.pausing import pause_view

    return pause_view(site, request)


def _resume(site: AdminSite, request: HttpRequest) -> HttpResponse:
    from django_delayq.admin.dashboard.pausing import resume_view

    return resume_view(site, request)


def _storeless(site: AdminSite, request: HttpRequest) -> HttpResponse:
    from django_delayq.admin.dashboard.storeless import storeless_view

    return storeless_view(site, request)
