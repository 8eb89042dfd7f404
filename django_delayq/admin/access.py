"""Who may look at the dashboard and act on it, and the way back to it."""

from typing import Any
from urllib.parse import urlencode

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from django_delayq.admin.aliases import PARAMETER
from django_delayq.conf import alias_names


def alias_of(request: HttpRequest) -> str:
    """The alias that the address names, with a store or not, else the first."""
    names = alias_names()
    named = request.GET.get(PARAMETER)
    return named if named in names else names[0]


def address(request: HttpRequest, name: str, alias: str, *args: str, **query: str) -> str:
    """An address on the site that answers the request; the alias is left out where there is only one."""
    if len(alias_names()) > 1:
        query[PARAMETER] = alias
    found = reverse(f"admin:{name}", args=args, current_app=getattr(request, "current_app", None))
    return f"{found}?{urlencode(query)}" if query else found


def back(request: HttpRequest, alias: str) -> HttpResponse:
    """To the dashboard."""
    return HttpResponseRedirect(address(request, "app_list", alias, "delayq"))


def may(request: HttpRequest, permission: str) -> bool:
    """Whether whoever asks has this permission of the app."""
    user: Any = request.user
    return bool(user.has_perm(f"delayq.{permission}"))


def check_may_look(site: AdminSite, request: HttpRequest) -> None:
    """Raise `PermissionDenied` for who may see none of the app's lists, and so not its index. The answer belongs to
    `site`.

    A permission to act alone does not do: Django's `has_module_perms` is satisfied with any, its index is not.
    """
    request.current_app = site.name  # as the admin's own views do
    if not site.get_app_list(request, "delayq"):
        raise PermissionDenied


def check_may(site: AdminSite, request: HttpRequest, permission: str) -> None:
    """Raise `PermissionDenied` for who has not this permission of the app."""
    check_may_look(site, request)
    if not may(request, permission):
        raise PermissionDenied
