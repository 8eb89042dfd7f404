"""The list of schedules. What its pages and actions need is imported when the first of them is asked for."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin import ListFilter, ModelAdmin, SimpleListFilter
from django.db.models import Model, Q, QuerySet, Subquery, Value
from django.db.models.expressions import OuterRef
from django.db.models.functions import Concat
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.access import alias_of, may, may_view, redirected_on_outage
from django_delayq.admin.formatting import instant, now_utc, visible
from django_delayq.admin.lists.bounded import BoundedAdmin, BoundedList, TooSlow, time_limit
from django_delayq.admin.lists.filters import MOST_NAMES, AliasFilter, Choices
from django_delayq.admin.lists.kept_searches import is_sent, meant, redirect_to
from django_delayq.admin.schedules.occurrences import may_be_removed, next_due, rule_in_words, shown, state_in_words
from django_delayq.admin.visibility import sees_all
from django_delayq.conf import get_alias
from django_delayq.core.occurrences import occurrence_of
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage, Schedule


class Move(NamedTuple):
    """Something that is done to schedules: by an action of the list, or a button on the page of one."""

    name: str
    label: Any
    permission: str
    deletes: bool = False


PAUSE = Move("pause_schedules", gettext_lazy("Pause"), "pause_schedule")
RESUME = Move("resume_schedules", gettext_lazy("Resume"), "pause_schedule")
RUN = Move("run_schedules", gettext_lazy("Run now"), "run_schedule")
REMOVE = Move("remove_schedules", gettext_lazy("Delete"), "delete_schedule", deletes=True)

_STATES = {
    "active": Q(look_at__isnull=False, error=""),
    "paused": Q(paused_at__isnull=False),
    "gone": Q(gone_at__isnull=False),
    "over": Q(look_at__isnull=True, paused_at__isnull=True, gone_at__isnull=True),
    "error": ~Q(error=""),
}


def _action_of(move: Move) -> Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse | None]:
    @admin.action(description=move.label)
    def act(model_admin: Any, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        from django_delayq.admin.schedules.actions import act_on  # late, as in dashboard/urls.py

        return act_on(model_admin, request, rows, move)

    act.__name__ = move.name
    return act


class StateFilter(SimpleListFilter):
    """A filter by the state of a schedule."""

    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Choices:
        return [
            ("active", _("active")),
            ("paused", _("paused")),
            ("gone", _("not in the code any more")),
            ("over", _("over")),
            ("error", _("its rule fails")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        condition = _STATES.get(self.value() or "")
        return queryset if condition is None else queryset.filter(condition)


class KeyFilter(SimpleListFilter):
    """A filter by the key of the messages, which offers those that schedules have."""

    title = gettext_lazy("key")
    parameter_name = "key"

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Choices:
        rows = model_admin.get_queryset(request).order_by("key")
        return [(key, visible(key)) for key in rows.values_list("key", flat=True).distinct()[:MOST_NAMES]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        known = {value for value, _shown in self.lookup_choices}
        if self.value() is None:
            return queryset
        return queryset.filter(key=self.value()) if self.value() in known else queryset.none()


class OriginFilter(SimpleListFilter):
    """A filter by the place that the schedule comes from."""

    title = gettext_lazy("origin")
    parameter_name = "origin"

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Choices:
        return Schedule.Origin.choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(origin=self.value()) if self.value() in Schedule.Origin.values else queryset


class ScheduleList(BoundedList):
    """A page of schedules, each with what its messages tell.

    `due_at` is when the one that was put last is due, if it waits. `finished` and `failed` are the ids of the last ones
    that ended like that.
    """

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: list[Any] = self.result_list
        admin: Any = self.model_admin
        for row in rows:
            row.due_at = row.finished = row.failed = None
        if not rows:
            return
        waiting = ReadyMessage.objects.filter(alias=OuterRef("alias"), message_id=OuterRef("message_id"), token=None)
        told = {"due_at": Subquery(waiting.values("due_at")[:1])}
        told |= {
            name: Subquery(_last_of(ended).values("message_id")[:1])
            for name, model, ended in (
                ("finished", FinishMessage, FinishMessage.objects.filter(outcome=FinishMessage.Outcome.FINISHED)),
                ("failed", ErrorMessage, ErrorMessage.objects.all()),
            )
            if may_view(admin.admin_site, request, model)
        }
        found = Schedule.objects.using(self.root_queryset.db).filter(pk__in=[row.pk for row in rows])
        try:
            with time_limit(found.db):
                last = {each.pop("pk"): each for each in found.annotate(**told).values("pk", *told)}
        except TooSlow:
            return
        for row in rows:
            vars(row).update(last.get(row.pk, {}))


def _labelled(label: str, value: Any) -> SafeString:
    """Return a cell with its column's name, which is shown where the list is too narrow for columns."""
    return format_html('<span class="delayq-label">{} </span>{}', label, value)


def _last_of(ended: QuerySet[Any]) -> QuerySet[Any]:
    """Return the ended messages of the schedule of the outer query, the last occurrence first."""
    ids = {f"message_id__{lookup}": Concat(OuterRef("name"), Value(end)) for lookup, end in (("gte", "@"), ("lt", "A"))}
    return ended.filter(alias=OuterRef("alias"), **ids).order_by("-message_id")  # "A" comes after "@"


class ScheduleAdmin(BoundedAdmin):
    """The schedules by name. They are written by store/schedules.py alone, never as models.

    They concern the messages of all, so a user who sees a part of the messages sees no schedule.
    """

    ordering = ("name",)
    search_fields = ("name", "key")
    search_help_text = gettext_lazy("A part of a name or of a key.")
    list_display = ("name", "key", "rule_in_words", "next_at", "last_run", "state", "origin")
    list_display_links = ("name",)
    list_filter: ClassVar[tuple[type[ListFilter], ...]] = (AliasFilter, StateFilter, KeyFilter, OriginFilter)
    moves = (PAUSE, RESUME, RUN, REMOVE)
    actions = tuple(map(_action_of, moves))
    not_in_lists = ("data", "header")

    @admin.display(description=gettext_lazy("rule"))
    def rule_in_words(self, row: Schedule) -> str:
        """Return the rule in words."""
        return rule_in_words(row)

    @admin.display(description=gettext_lazy("next"))
    def next_at(self, row: Any) -> SafeString:
        """Return when the next occurrence is due."""
        return _labelled(_("next"), instant(row.due_at or next_due(row, now_utc())))

    @admin.display(description=gettext_lazy("last"))
    def last_run(self, row: Any) -> SafeString:
        """Return the last occurrence that ran, with what became of it."""
        said = {row.finished: _("finished"), row.failed: _("failed")}
        found = [(occurrence, said[id]) for id in said if id and (occurrence := occurrence_of(id))]
        if not found:
            return _labelled(_("last"), "-")
        (_name, at), words = max(found)
        return _labelled(_("last"), format_html("{}, {}", instant(at), words))

    @admin.display(description=gettext_lazy("state"))
    def state(self, row: Schedule) -> str:
        """Return the state in words."""
        return state_in_words(row)

    def shown(self, row: Schedule) -> Schedule:
        return shown(row)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        return rows if sees_all(request.user, alias_of(request)) else rows.none()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[BoundedList]:
        return ScheduleList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return super().get_search_results(request, queryset, meant(request, search_term))

    # Permissions

    def is_writable(self, request: HttpRequest) -> bool:
        """Return whether the schedules of the alias can be changed at all, and this user sees them."""
        alias = alias_of(request)
        return get_alias(alias).store is not None and sees_all(request.user, alias)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return may(request, "add_schedule") and self.has_view_permission(request) and self.is_writable(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return (
            may(request, "change_schedule")
            and self.is_writable(request)
            and getattr(obj, "origin", None) != Schedule.Origin.CODE
        )

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return may(request, "view_schedule") or may(request, "change_schedule")

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return the actions that this user may take."""
        where = {} if action_location is None else {"action_location": action_location}  # Django before 6.1 has none
        can_write = self.is_writable(request)
        forbidden = {move.name for move in self.moves if not (can_write and may(request, move.permission))}
        return {name: action for name, action in super().get_actions(request, **where).items() if name not in forbidden}

    def buttons(self, request: HttpRequest, row: Schedule) -> list[Move]:
        """Return what this user may do to a schedule, for its page."""
        offered = self.get_actions(request)
        senseless = {RESUME if row.paused_at is None else PAUSE, *([] if may_be_removed(row) else [REMOVE])}
        return [move for move in self.moves if move.name in offered and move not in senseless]

    # Pages

    def get_urls(self) -> list[Any]:
        own = [
            path(f"<path:object_id>/{page}/", self.admin_site.admin_view(getattr(self, f"{page}_view")), name=name)
            for page, name in (("edit", "delayq_schedule_edit"), ("backfill", "delayq_schedule_backfill"))
        ]
        return [*own, *super().get_urls()]

    @redirected_on_outage
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if is_sent(request) and self.has_view_permission(request):
            return redirect_to(request)
        alias = alias_of(request)
        if not sees_all(request.user, alias):
            messages.warning(request, _("Nothing is shown: schedules concern the messages of all, and you see a part."))
        without_store = get_alias(alias).store is None
        return super().changelist_view(request, {"without_store": without_store, **(extra_context or {})})

    @redirected_on_outage
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        from django_delayq.admin.schedules.page import schedule_page  # late, as in dashboard/urls.py

        return schedule_page(self, request, object_id)

    @redirected_on_outage
    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        from django_delayq.admin.schedules.page import schedule_page

        return schedule_page(self, request, object_id)  # that page shows what operators did, without payloads

    @redirected_on_outage
    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        from django_delayq.admin.schedules.page import schedule_page

        return schedule_page(self, request, object_id)  # that page has the button

    @redirected_on_outage
    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        from django_delayq.admin.schedules.edit import add_page

        return add_page(self, request)

    @redirected_on_outage
    def edit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form of a schedule, and change it."""
        from django_delayq.admin.schedules.edit import edit_page

        return edit_page(self, request, object_id)

    @redirected_on_outage
    def backfill_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for a span, and put the messages of its occurrences."""
        from django_delayq.admin.schedules.backfill import backfill_page

        return backfill_page(self, request, object_id)
