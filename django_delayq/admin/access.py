"""Check who may look at the dashboard and act on it, and lead back to it."""

from typing import Any

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from django_delayq.admin.aliases import query_of


def address(request: HttpRequest, name: str, alias: str, *args: str, **query: str) -> str:
    """Return the address of a page of `alias` on the site that answers the request."""
    found = reverse(f"admin:{name}", args=args, current_app=getattr(request, "current_app", None))
    return found + query_of(alias, **query)


def back(request: HttpRequest, alias: str) -> HttpResponse:
    """Redirect to the dashboard."""
    return HttpResponseRedirect(address(request, "app_list", alias, "delayq"))


def may(request: HttpRequest, permission: str) -> bool:
    """Return whether the user has this permission of the app."""
    user: Any = request.user
    return bool(user.has_perm(f"delayq.{permission}"))


def check_may_look(site: AdminSite, request: HttpRequest) -> None:
    """Raise `PermissionDenied` for a user who may see none of the app's lists, and so not its index.

    Also marks `request` as answered by `site`. A permission to act is not enough by itself: any permission satisfies
    Django's `has_module_perms`, but its index needs one to look.
    """
    request.current_app = site.name  # as the admin's own views do
    if not site.get_app_list(request, "delayq"):
        raise PermissionDenied


def check_may(site: AdminSite, request: HttpRequest, permission: str) -> None:
    """Raise `PermissionDenied` for a user without this permission of the app."""
    check_may_look(site, request)
    if not may(request, permission):
        raise PermissionDenied
