"""One page with the messages of all lists: how many each has, the first of them, and one search through all.

Searched for a tag it shows the line of a customer, or of whatever the tag names: what was, what is, and what comes.
"""

from collections.abc import Iterator
from copy import copy
from typing import Any, NamedTuple

from django.contrib import messages
from django.contrib.admin.views.main import SEARCH_VAR
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from django_delayq.admin.access import (
    PARAMETER,
    address,
    alias_of,
    message_address,
    query_of,
    redirected_on_outage,
    render_about,
    stored_aliases,
)
from django_delayq.admin.formatting import instant, number
from django_delayq.admin.lists.admins import MessageAdmin, refusal
from django_delayq.admin.lists.bounded import BoundedAdmin
from django_delayq.admin.lists.coming import coming
from django_delayq.admin.lists.filters import AliasFilter
from django_delayq.admin.lists.kept_searches import is_sent, meant, redirect_to
from django_delayq.admin.message.page import state_of
from django_delayq.conf import get_alias
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage

SHOWN = 10
"""How many messages of each list the page shows."""


class Section(NamedTuple):
    """A list's part of the page."""

    name: str
    number: str
    address: str
    when: str
    rows: list[dict[str, Any]]
    looked: int | None
    """How many payloads were looked through before the search stopped; None if it did not stop."""


class AnyMessageAdmin(BoundedAdmin):
    """The page of all messages. What a user sees of each list is what that list itself would show."""

    actions = None

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return any(self._lists(request))

    def get_urls(self) -> list[URLPattern]:
        return [path("", self.admin_site.admin_view(self.changelist_view), name="delayq_anymessage_changelist")]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        lists = list(self._lists(request))
        if not lists:
            raise PermissionDenied
        if is_sent(request):
            return redirect_to(request)
        return self._page(request, lists)

    @redirected_on_outage
    def _page(self, request: HttpRequest, lists: list[MessageAdmin]) -> HttpResponse:
        alias, asked = alias_of(request), request.GET.get(SEARCH_VAR, "").strip()
        sought = meant(request, asked)
        why_not = refusal(request, sought)
        if why_not:
            messages.warning(request, why_not)
        return render_about(
            self,
            request,
            "messages",
            title=_("Messages"),
            alias=alias,
            search_address=address(request, "delayq_anymessage_changelist", alias),
            aliases=[(name, query_of(name)) for name in aliases] if len(aliases := stored_aliases()) > 1 else [],
            asked=sought,
            help_text=MessageAdmin.search_help_text,
            coming=[] if why_not or not asked else coming(request, alias, sought, [each.model for each in lists]),
            sections=[] if why_not else [_section(request, each, alias, asked) for each in lists],
            without_store=get_alias(alias).store is None,
        )

    def _lists(self, request: HttpRequest) -> Iterator[MessageAdmin]:
        """Yield the lists of this site that the user may see."""
        for model in (ReadyMessage, ErrorMessage, FinishMessage):
            found: Any = self.admin_site.get_model_admin(model) if self.admin_site.is_registered(model) else None
            if found is not None and found.has_view_permission(request):
                yield found


def _section(request: HttpRequest, admin: MessageAdmin, alias: str, asked: str) -> Section:
    found = _first_of(request, admin, alias, asked)
    paginator: Any = found.paginator
    return Section(
        name=str(admin.opts.verbose_name_plural),
        number=number(paginator.count, capped=paginator.is_capped),
        address=address(request, f"delayq_{admin.opts.model_name}_changelist", alias, **_search(asked)),
        when=_("Due") if admin.model is ReadyMessage else _("Ended"),
        rows=[_line(request, admin, row) for row in found.result_list],
        looked=found.stopped.found.looked if found.stopped else None,
    )


def _first_of(request: HttpRequest, admin: MessageAdmin, alias: str, asked: str) -> Any:
    """Return the first page of a list, short, and without the list's own filters and actions."""
    short: Any = copy(admin)
    own: Any = copy(request)
    short.list_per_page, short.list_filter, short.actions = SHOWN, (AliasFilter,), None
    own.GET = QueryDict(mutable=True)
    own.GET.update({PARAMETER: alias, **_search(asked)})
    return short.get_changelist_instance(own)


def _search(asked: str) -> dict[str, str]:
    return {SEARCH_VAR: asked} if asked else {}


def _line(request: HttpRequest, admin: MessageAdmin, row: MessageRow) -> dict[str, Any]:
    return {
        "id": row.message_id,
        "address": message_address(request, row),
        "key": row.key,
        "state": state_of(row),
        "when": instant(row.ended_at if isinstance(row, FinishMessage | ErrorMessage) else row.due_at),
        "error": admin.last_error(row),
        "tag": row.tag,
    }
