"""Find the alias of a page and the page's address, check the user's rights, and redirect while the tables are away."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin import AdminSite, site as default_site
from django.contrib.admin.sites import all_sites
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Tables
from django_delayq.conf import alias_names, get_alias, valid_aliases
from django_delayq.core.errors import DelayqError
from django_delayq.models import MessageRow
from django_delayq.support.audit import Operator
from django_delayq.support.translatable import text as _
from django_delayq.support.validation import MAX_NAME
from django_delayq.translation import translated

if TYPE_CHECKING:
    from django_delayq.store.database import Database

PARAMETER = "alias"


def stored_aliases() -> list[str]:
    """Return the aliases with a store, in the order of the settings.

    If none has a store, return all aliases, because their tables may still have rows.
    """
    return [alias.name for alias in valid_aliases() if alias.store is not None] or alias_names()


def opening_alias() -> str:
    """Return the alias for an address that names none: the first with a store.

    The dashboard and the lists agree on it.
    """
    return stored_aliases()[0]


def alias_of(request: HttpRequest) -> str:
    """Return the alias that the address names, with or without a store, or else the one that pages open on.

    Each alias may have a database of its own, so a page shows one alias at a time.
    """
    named = request.GET.get(PARAMETER)
    return named if named in alias_names() else opening_alias()


def database_of(alias: str) -> "Database":
    """Return the database with the tables of an alias, whether it has a store or not."""
    from django_delayq.store.database import Database  # late, as in dashboard/urls.py

    return Database(alias, get_alias(alias).database)


def store_of(alias: str) -> Tables:
    """Return the tables of an alias. Raises `DelayqError` if their rows are from when it had a store."""
    store = get_backend(alias).store
    if store is None:
        raise DelayqError(_('DELAYQ["%(alias)s"] has no STORE any more, so its rows are not moved.', alias=alias))
    return store


def query_of(alias: str, **query: str) -> str:
    """Return the query string that asks for `query` of `alias`. The alias is left out where there is only one."""
    if len(alias_names()) > 1:
        query[PARAMETER] = alias
    return f"?{urlencode(query)}" if query else ""


def address(request: HttpRequest, name: str, alias: str, *args: Any, **query: str) -> str:
    """Return the address of a page of `alias` on the site that answers the request."""
    found = reverse(f"admin:{name}", args=args, current_app=getattr(request, "current_app", None))
    return found + query_of(alias, **query)


def message_address(request: HttpRequest, row: MessageRow) -> str:
    """Return the address of a message's page."""
    return address(request, f"delayq_{row._meta.model_name}_change", row.alias, row.pk)


def back(request: HttpRequest, alias: str) -> HttpResponse:
    """Redirect to the dashboard."""
    return HttpResponseRedirect(address(request, "app_list", alias, "delayq"))


def render_page(site: AdminSite, request: HttpRequest, template: str, **context: Any) -> TemplateResponse:
    """Render a page of `site`, with the address of the dashboard in its context."""
    request.current_app = site.name
    index = address(request, "app_list", alias_of(request), "delayq")
    own = {**site.each_context(request), "index_address": index}
    return TemplateResponse(request, f"admin/delayq/{template}.html", own | context)


def render_about(admin: Any, request: HttpRequest, template: str, **context: Any) -> TemplateResponse:
    """Render a page about a list of the admin, with the context that Django gives its own pages about the list."""
    return render_page(admin.admin_site, request, template, opts=admin.opts, media=admin.media, **context)


def operator_of(request: HttpRequest) -> Operator:
    """Return who sends the request, and the address that it came from, for the audit lines."""
    return Operator(request.user.get_username(), request.META.get("REMOTE_ADDR") or "-")


def name_of_user(request: HttpRequest) -> str:
    """Return the name of the user who sends the request, as far as a column of names can keep it."""
    return kept_name(request.user)


def kept_name(user: Any) -> str:
    """Return the name of a user, as far as a column of names can keep it."""
    return str(user.get_username())[:MAX_NAME]


def may(request: HttpRequest, permission: str) -> bool:
    """Return whether the user has this permission of the app."""
    return bool(request.user.has_perm(f"delayq.{permission}"))


def may_view(site: AdminSite, request: HttpRequest, model: type[Model]) -> bool:
    """Return whether the site has a list of these rows that the user may see."""
    return site.is_registered(model) and site._registry[model].has_view_permission(request)


def site_of(request: HttpRequest) -> AdminSite:
    """Return the admin site that answers the request, or Django's default site if no admin page does."""
    name = getattr(request, "current_app", None)
    return next((site for site in all_sites if site.name == name), default_site)


def check_may_look(site: AdminSite, request: HttpRequest) -> None:
    """Raise `PermissionDenied` for a user who may see none of the app's lists.

    Also set `request.current_app` to the name of `site`. A permission to act is not enough: Django's `has_module_perms`
    accepts any permission of the app, but the app's index shows only lists that the user may view.
    """
    request.current_app = site.name  # as the admin's own views do
    if not site.get_app_list(request, "delayq"):
        raise PermissionDenied


def check_may(site: AdminSite, request: HttpRequest, permission: str) -> None:
    """Raise `PermissionDenied` for a user who lacks this permission of the app, or may see none of its lists."""
    check_may_look(site, request)
    if not may(request, permission):
        raise PermissionDenied


def redirected_on_outage(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Wrap a view of an admin class so that it redirects to the dashboard if the tables can't be used.

    The dashboard shows the reason, and updates itself. `request.current_app` is set to the site of the admin class, so
    that links lead to that site.
    """

    @wraps(view)
    def guarded(admin: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        alias = alias_of(request)
        request.current_app = admin.admin_site.name  # as the admin's own views do
        try:
            with database_of(alias).available():
                return view(admin, request, *args, **kwargs)
        except DelayqError as error:
            messages.error(request, translated(error))
        return back(request, alias)

    return guarded
