"""The lists of messages: read-only, bounded in what a page costs, one alias at a time."""

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.options import ShowFacets
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin import columns
from django_delayq.admin.aliases import alias_of, query_of
from django_delayq.admin.filters import (
    AliasFilter,
    DueFilter,
    EndedFilter,
    FailuresFilter,
    KeyFilter,
    OutcomeFilter,
    QueueFilter,
    StateFilter,
)
from django_delayq.admin.limits import LIMIT_S, CappedPaginator, TooSlow, time_limit
from django_delayq.admin.message_page import message_page
from django_delayq.admin.payload import may_search
from django_delayq.admin.search import asks_for_data, find
from django_delayq.conf import get_alias
from django_delayq.models import MessageRow


class MessageList(ChangeList):
    """A page of messages, found within the time limit or not at all."""

    def get_results(self, request: HttpRequest) -> None:
        try:
            with time_limit(self.queryset.db):
                super().get_results(request)
                self.result_list: Any = list(self.result_list)
        except TooSlow:
            _say_too_slow(request)
            self.queryset = self.queryset.none()
            super().get_results(request)

    def url_for_result(self, result: Any) -> str:
        return super().url_for_result(result) + query_of(result.alias)


class MessageAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    """What the three lists share. Rows are not added or changed here: that is what sending and the moves are for."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 0
    list_display_links = ("message_id",)
    sortable_by = ()
    search_fields = ("message_id", "tag")
    search_help_text = gettext_lazy(
        "An id or a tag, or the start of one with a star: order:42*. A value in the payload: data.order=42"
    )
    change_list_template = "admin/delayq/change_list.html"

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: MessageRow | None = None) -> bool:
        return False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return MessageList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        alias = alias_of(request)
        return super().get_queryset(request).using(get_alias(alias).database).filter(alias=alias)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        text = search_term.strip()
        if not text:
            return queryset, False
        if asks_for_data(text) and not may_search(request, alias_of(request)):
            messages.warning(request, _("Nothing is shown: you may not look into payloads, or they are masked."))
            return queryset.none(), False
        try:
            with time_limit(queryset.db):
                return find(queryset, text), False
        except TooSlow:
            _say_too_slow(request)
            return queryset.none(), False

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return message_page(self, request, object_id)

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        # Only what the filters ask for: `?data__contains=` would tell of payloads that the viewer may not see.
        return lookup in {each.parameter_name for each in self.list_filter}  # type: ignore[union-attr]


class ReadyMessageAdmin(MessageAdmin):
    """What waits or runs, nearest first."""

    ordering = ("due_at", "id")
    list_display = (
        "message_id",
        "key",
        "queue",
        columns.state,
        columns.due,
        columns.next_step,
        columns.attempt,
        columns.last_error,
        columns.tag,
    )
    list_filter = (AliasFilter, StateFilter, DueFilter, FailuresFilter, QueueFilter, KeyFilter)


class FinishMessageAdmin(MessageAdmin):
    """What ended well or was cancelled, newest first."""

    ordering = ("-ended_at", "-id")
    list_display = (
        "message_id",
        "key",
        "queue",
        "outcome",
        columns.ended,
        columns.due,
        columns.lateness,
        columns.failed_attempts,
        columns.tag,
    )
    list_filter = (AliasFilter, OutcomeFilter, EndedFilter, FailuresFilter, QueueFilter, KeyFilter)


class ErrorMessageAdmin(MessageAdmin):
    """What failed for good, newest first."""

    ordering = ("-ended_at", "-id")
    list_display = (
        "message_id",
        "key",
        "queue",
        columns.last_error,
        columns.buried,
        columns.due,
        columns.failed_attempts,
        columns.tag,
    )
    list_filter = (AliasFilter, EndedFilter, FailuresFilter, QueueFilter, KeyFilter)


def _say_too_slow(request: HttpRequest) -> None:
    messages.warning(
        request,
        _("Nothing is shown: finding the rows took over %(limit)g s. Narrow the list by a key or an id.")
        % {"limit": LIMIT_S},
    )
