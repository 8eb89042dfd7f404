"""The lists of messages, and of the last report of the pipeline on Spark."""

from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.access import address, alias_of, may, redirected_on_outage
from django_delayq.admin.bulk import jobs
from django_delayq.admin.bulk.actions import (
    CANCEL,
    CANCEL_RUNNING,
    PURGE,
    PURGE_ERRORS,
    RESCHEDULE,
    RESCUE,
    RUN_NOW,
    SEND_AGAIN,
    Move,
    action_of,
)
from django_delayq.admin.bulk.changes import KEY
from django_delayq.admin.bulk.jobs import job_address, job_page
from django_delayq.admin.bulk.undo_page import undo_page
from django_delayq.admin.dashboard.urls import urls
from django_delayq.admin.formatting import instant, visibly
from django_delayq.admin.lists.bounded import BoundedAdmin, StoppedSearch, TooSlow, say_too_slow, time_limit
from django_delayq.admin.lists.columns import Columns, fingerprint, is_running, queue
from django_delayq.admin.lists.export import export_csv, export_jsonl
from django_delayq.admin.lists.filters import (
    AliasFilter,
    DueFilter,
    DueRangeFilter,
    EndedFilter,
    EndedRangeFilter,
    FailuresFilter,
    FingerprintFilter,
    KeyFilter,
    OutcomeFilter,
    PriorityFilter,
    QueueFilter,
    StateFilter,
)
from django_delayq.admin.lists.kept_searches import is_in_address, is_over, is_sent, meant, redirect_to
from django_delayq.admin.lists.reported import has_report
from django_delayq.admin.lists.search import asks_for_data, find, find_on_page, is_many
from django_delayq.admin.message.edit import CHANGE, RESCUE_CHANGED, Edit, edit_page
from django_delayq.admin.message.errors import may_view_errors
from django_delayq.admin.message.page import message_page
from django_delayq.admin.message.payload import may_search
from django_delayq.admin.visibility import narrowed, sees_all
from django_delayq.api.handlers import handlers_by_key
from django_delayq.conf import get_alias
from django_delayq.models import MessageRow, ReadyMessage, ReportRow
from django_delayq.support.units import to_text


def refusal(request: HttpRequest, text: str) -> str:
    """Return why nothing is searched for `text`, which `meant` has returned; empty if it is searched for."""
    if not (asks_for_data(text) or is_over(text)):
        return ""
    if not may_search(request, alias_of(request)):
        return _("Nothing is shown: you may not look into payloads, or they are masked.")
    if is_over(text):
        return _("Nothing is shown: this search in payloads is over, so type it again.")
    if is_in_address(request):
        return _("Nothing is shown: type a search in payloads into the box, because addresses stay in logs.")
    return ""


class MessageAdmin(Columns, BoundedAdmin):
    """The base of the three lists. Rows are not added or changed here, but by sends and moves."""

    list_display_links = ("message_id",)
    search_fields = ("message_id", "tag")
    search_help_text = gettext_lazy(
        "An id or a tag, or the start of one with a star: order:42*. "
        'A value in the payload: data.order=42, data."a.b"=42'
    )
    moves: tuple[Move, ...] = ()
    edit: Edit | None = None
    edit_permissions: tuple[str, ...] = ()
    """The permissions that a change of a payload needs: it shows the payload, and may run the message."""
    not_in_lists: tuple[str, ...] = ("data", "history")  # may be large, and no column shows them

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns: the last one has the shares, if a handler has any."""
        has_shares = any(handler.shares for handler in handlers_by_key(alias_of(request)).values())
        return (*self.list_display, "share") if has_shares else self.list_display

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return narrowed(request.user, super().get_queryset(request), alias_of(request))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        text = request.delayq_search = meant(request, search_term)  # type: ignore[attr-defined]
        if not text:
            return queryset, False
        if why_not := refusal(request, text):
            messages.warning(request, why_not)
            return queryset.none(), False
        if not asks_for_data(text):
            rows, request.delayq_many = find(queryset, text)  # type: ignore[attr-defined]
            request.delayq_named = text  # type: ignore[attr-defined]
            return rows, False
        try:
            with time_limit(queryset.db):
                found = find_on_page(queryset, text)
        except TooSlow:
            say_too_slow(request)
            return queryset.none(), False
        if not found.is_whole:
            request.delayq_stopped = StoppedSearch(queryset, text, found)  # type: ignore[attr-defined]
        return queryset.filter(pk__in=found.pks), False

    def get_paginator(self, request: HttpRequest, queryset: Any, *arguments: Any, **options: Any) -> Any:
        paginator: Any = super().get_paginator(request, queryset, *arguments, **options)
        named = getattr(request, "delayq_named", "")
        paginator.is_many = getattr(request, "delayq_many", False) or (bool(named) and is_many(queryset, named))
        return paginator

    def shown(self, row: MessageRow) -> MessageRow:
        return visibly(row)

    @redirected_on_outage
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if is_sent(request) and self.has_view_permission(request):
            return redirect_to(request)
        without_store = get_alias(alias_of(request)).store is None
        return super().changelist_view(request, {"without_store": without_store, **(extra_context or {})})

    @redirected_on_outage
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        job = jobs.logged(unquote(object_id))
        if job:
            return HttpResponseRedirect(job_address(request, str(self.opts.model_name), *job))
        return message_page(self, request, object_id)

    @redirected_on_outage
    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return message_page(self, request, object_id)  # that page shows what operators did, without payloads

    def get_urls(self) -> list[Any]:
        name = self.opts.model_name
        job = self.admin_site.admin_view(partial(job_page, self))
        undo = self.admin_site.admin_view(partial(undo_page, self))
        own = [
            path("job/<str:name>/", job, name=f"delayq_{name}_job"),
            path("undo/<str:pk>/", undo, name=f"delayq_{name}_undo"),
            *urls(self.admin_site),
        ]
        if self.edit:
            page = self.admin_site.admin_view(partial(edit_page, self))
            own.append(path("<path:object_id>/payload/", page, name=f"delayq_{name}_payload"))
        return [*own, *super().get_urls()]

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return the actions that this user may take. The others are not offered, and refuse if they are asked for."""
        where = {} if action_location is None else {"action_location": action_location}  # Django before 6.1 has none
        forbidden = {move.name for move in self.moves if not may(request, move.permission)}
        return {name: action for name, action in super().get_actions(request, **where).items() if name not in forbidden}

    def buttons(self, request: HttpRequest) -> list[Move]:
        """Return the moves that this user may make, for a message's page."""
        offered = self.get_actions(request)
        return [move for move in self.moves if move.name in offered]

    def edit_address(self, request: HttpRequest, row: MessageRow) -> str:
        """Return the address where this user can change the message's payload; empty if there is none.

        A message has one if it waits or has failed, is not a job's, and the user may change payloads.
        """
        if self.edit is None or row.key == KEY or not self.has_edit_permission(request):
            return ""
        if isinstance(row, ReadyMessage) and is_running(row):
            return ""
        return address(request, f"delayq_{self.opts.model_name}_payload", row.alias, row.pk)

    def has_edit_permission(self, request: HttpRequest) -> bool:
        """Return whether this user may change the payloads of these messages."""
        return request.user.has_perms(self.edit_permissions)


class ReadyMessageAdmin(MessageAdmin):
    """The messages that wait or run, the earliest due time first."""

    moves = (RUN_NOW, RESCHEDULE, CANCEL, CANCEL_RUNNING, PURGE)
    edit = CHANGE
    edit_permissions = ("delayq.edit_payload", "delayq.view_payload")
    actions = (*map(action_of, moves), export_csv, export_jsonl)
    ordering = ("due_at", "id")
    list_display = ("message_id", "key", "state", "next_step", "attempt", "last_error", "due", queue, "tag")
    list_filter = (
        AliasFilter,
        StateFilter,
        DueFilter,
        DueRangeFilter,
        FailuresFilter,
        QueueFilter,
        PriorityFilter,
        KeyFilter,
    )


class FinishMessageAdmin(MessageAdmin):
    """The messages that ended well or were cancelled, newest first."""

    moves = (SEND_AGAIN,)
    actions = (*map(action_of, moves), export_csv, export_jsonl)
    ordering = ("-ended_at", "-id")
    list_display = (
        "message_id",
        "key",
        "outcome",
        "ended",
        "lateness",
        "duration",
        "failed_attempts",
        "due",
        queue,
        "tag",
    )
    list_filter = (
        AliasFilter,
        OutcomeFilter,
        EndedFilter,
        EndedRangeFilter,
        FailuresFilter,
        QueueFilter,
        PriorityFilter,
        KeyFilter,
    )


class ErrorMessageAdmin(MessageAdmin):
    """The messages that failed for good, newest first."""

    moves = (RESCUE, PURGE_ERRORS)
    edit = RESCUE_CHANGED
    edit_permissions = ("delayq.edit_payload", "delayq.view_payload", "delayq.rescue_message")
    actions = (*map(action_of, moves), export_csv, export_jsonl)
    ordering = ("-ended_at", "-id")
    list_display = (
        "message_id",
        "key",
        "buried",
        "last_error",
        fingerprint,
        "due",
        "failed_attempts",
        queue,
        "tag",
    )
    list_filter = (
        AliasFilter,
        EndedFilter,
        EndedRangeFilter,
        FingerprintFilter,
        FailuresFilter,
        QueueFilter,
        PriorityFilter,
        KeyFilter,
    )
    not_in_lists = ("data", "history", "detail")

    def get_urls(self) -> list[Any]:
        groups = self.admin_site.admin_view(self.groups_view)
        return [
            path("groups/", groups, name="delayq_errormessage_groups"),
            *super().get_urls(),
        ]

    @redirected_on_outage
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        groups = address(request, "delayq_errormessage_groups", alias_of(request)) if may_view_errors(request) else ""
        return super().changelist_view(request, {"groups_address": groups, **(extra_context or {})})

    def groups_view(self, request: HttpRequest) -> HttpResponse:
        """Show the kinds of failures."""
        from django_delayq.admin.lists.failure_groups import groups_page  # late, as in dashboard/urls.py

        return groups_page(self, request)

    def get_list_filter(self, request: HttpRequest) -> Any:
        filters = super().get_list_filter(request)
        return filters if may_view_errors(request) else [each for each in filters if each is not FingerprintFilter]

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        if lookup == FingerprintFilter.parameter_name and not (request and may_view_errors(request)):
            return False
        return super().lookup_allowed(lookup, value, request)


@admin.display(description=gettext_lazy("hour"))
def hour(row: ReportRow) -> str | SafeString:
    """Return when the hour began."""
    return instant(row.hour)


@admin.display(description=gettext_lazy("failed"))
def failed(row: ReportRow) -> str:
    """Return how many messages failed for good."""
    return _share(row.failed, row)


@admin.display(description=gettext_lazy("retried"))
def retried(row: ReportRow) -> str:
    """Return how many messages had failed attempts before the last."""
    return _share(row.retried, row)


@admin.display(description=gettext_lazy("late by (50, 95, 99 %)"))
def lateness(row: ReportRow) -> str:
    """Return three times: half of the messages were at most so late, then 95 % of them, then 99 %."""
    return _times(row.lateness_p50, row.lateness_p95, row.lateness_p99)


@admin.display(description=gettext_lazy("took (50, 95, 99 %)"))
def duration(row: ReportRow) -> str:
    """Return three times: the last attempts of half of the messages took at most so long, then of 95 %, of 99 %."""
    return _times(row.duration_p50, row.duration_p95, row.duration_p99)


@admin.display(description=gettext_lazy("most frequent kind of failure"), empty_value="-")
def most_frequent(row: ReportRow) -> Any:
    """Return the most frequent kind of failure."""
    return row.fingerprint or None


def _share(count: int, row: ReportRow) -> str:
    return f"{count} ({100 * count / row.messages:.1f} %)" if count else "0"


def _times(*quantiles: int | None) -> str:
    return " / ".join(to_text(max(each, 0)) for each in quantiles if each is not None) or "-"


class ReportRowAdmin(BoundedAdmin):
    """The messages that ended in each hour, by key and queue, newest first.

    There is only the list, no page of a row.
    """

    actions = None
    ordering = ("-hour", "queue", "key")
    list_display = (hour, queue, "key", "messages", failed, "cancelled", retried, lateness, duration, most_frequent)
    list_display_links = None
    list_filter = (AliasFilter, QueueFilter, PriorityFilter, KeyFilter)

    @redirected_on_outage
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not sees_all(request.user, alias_of(request)):
            messages.warning(request, _("Nothing is shown: the report counts the messages of all, and you see a part."))
        return super().changelist_view(request, extra_context)

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        # Only what lists the models of the site asks for this: without a report, the page is there but not listed.
        perms = super().get_model_perms(request)
        return perms if any(perms.values()) and has_report(request, self.admin_site.name) else {}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        return rows if sees_all(request.user, alias_of(request)) else rows.none()

    def get_urls(self) -> list[URLPattern]:
        return [path("", self.admin_site.admin_view(self.changelist_view), name="delayq_reportrow_changelist")]
