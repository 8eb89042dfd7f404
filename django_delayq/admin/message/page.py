"""The page of one message: its state, its payload, what operators did to it, and what may be done now."""

from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from django_delayq.admin.aliases import alias_of, query_of, stored_aliases
from django_delayq.admin.bulk.selection import TABLES
from django_delayq.admin.lists.bounded import is_primary_key
from django_delayq.admin.log import entries_of
from django_delayq.admin.message.facts import facts, what_next
from django_delayq.admin.message.payload import may_view, payload_of
from django_delayq.admin.message.timeline import timeline
from django_delayq.admin.outage_redirect import redirected_on_outage
from django_delayq.conf import get_alias
from django_delayq.models import MessageRow


@redirected_on_outage
def message_page(admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    """Render the page of a message, or redirect to where the message has moved."""
    if not admin.has_view_permission(request):
        raise PermissionDenied
    alias, _colon, pk = unquote(object_id).rpartition(":")  # as admin/log.py writes it
    if alias in stored_aliases() and is_primary_key(pk):
        return HttpResponseRedirect(_address(admin, admin.model, "change", quote(pk)) + query_of(alias))
    row = admin.get_object(request, object_id)
    if row is None:
        return _elsewhere(admin, request, object_id)
    payload = payload_of(row, request)
    can_change = payload.text is not None and not payload.masked
    context = {
        **admin.admin_site.each_context(request),
        "title": str(row.message_id),
        "opts": admin.opts,
        "original": row,
        "media": admin.media,
        "has_view_permission": True,
        "change": True,
        "facts": list(facts(row)),
        "what_next": what_next(row),
        "attempts": timeline(row),
        "payload": payload,
        "same_tag": list(_same_tag(admin, row)),
        "entries": list(entries_of(row, TABLES, with_payloads=may_view(request))),
        "buttons": admin.buttons(request),
        "edit_address": admin.edit_address(request, row) if can_change else "",
        "list_address": _address(admin, admin.model, "changelist") + query_of(row.alias),
    }
    request.current_app = admin.admin_site.name
    return TemplateResponse(request, "admin/delayq/message.html", context)


def address_of(admin: Any, row: MessageRow) -> str:
    """Return the address of a message's page."""
    return _address(admin, type(row), "change", quote(row.pk)) + query_of(row.alias)


def _address(admin: Any, model: type[MessageRow], view: str, *args: str) -> str:
    name = f"admin:delayq_{model._meta.model_name}_{view}"
    return reverse(name, args=args, current_app=admin.admin_site.name)


def _elsewhere(admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    alias = alias_of(request)
    for model in filter(admin.admin_site.is_registered, TABLES):
        if is_primary_key(object_id) and model is not admin.model:
            found = model._default_manager.using(get_alias(alias).database).filter(alias=alias, pk=object_id).first()
            if found is not None:
                return HttpResponseRedirect(address_of(admin, found))
    messages.warning(request, _("There is no message %(pk)s any more.") % {"pk": object_id})
    return HttpResponseRedirect(_address(admin, admin.model, "changelist") + query_of(alias))


def _same_tag(admin: Any, row: MessageRow) -> Any:
    """Yield the name and address of each list of this site, searched for the tag."""
    if not row.tag:
        return
    for model in filter(admin.admin_site.is_registered, TABLES):
        yield model._meta.verbose_name_plural, _address(admin, model, "changelist") + query_of(row.alias, q=row.tag)
