"""The list of bulk actions: who did what, and whether it was undone, or can be."""

from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.access import address, alias_of, may, may_view, name_of_user, redirected_on_outage
from django_delayq.admin.bulk.changes import LABELS, Change, permission_of
from django_delayq.admin.bulk.jobs import model_named
from django_delayq.admin.bulk.undo import list_of
from django_delayq.admin.formatting import instant, number, visible
from django_delayq.admin.lists.bounded import BoundedAdmin, BoundedList, TooSlow, time_limit
from django_delayq.admin.lists.filters import AliasFilter
from django_delayq.admin.visibility import sees_all
from django_delayq.models import ActionRow, UndoRow


class ActionList(BoundedList):
    """A page of actions, each with how many messages its undo would look at, and the address of its undo.

    The number is None if counting takes too long. The address is empty if there is nothing to undo, or for one who may
    not.
    """

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        site = self.model_admin.admin_site
        counts = self._counts()
        row: Any
        for row in self.result_list:
            row.left = None if counts is None else counts.get(row.pk, 0)
            needed = permission_of(Change(row.kind))
            may_undo = may(request, needed) and may_view(site, request, model_named(list_of(row)))
            is_there = may_undo and row.left != 0
            row.undo_address = address(request, f"delayq_{list_of(row)}_undo", row.alias, row.pk) if is_there else ""

    def _counts(self) -> dict[int, int] | None:
        changed = UndoRow.objects.using(self.root_queryset.db).filter(
            action_pk__in=[row.pk for row in self.result_list]
        )
        try:
            with time_limit(changed.db):
                return dict(changed.values_list("action_pk").annotate(Count("pk")))
        except TooSlow:
            return None


class ActionRowAdmin(BoundedAdmin):
    """The actions that can be undone, and those that were, newest first. There is only the list, no page of a row.

    Who sees a part of the messages sees only their own actions.
    """

    actions = None
    ordering = ("-acted_at", "-id")
    list_display = ("when", "who", "what", "called", "left", "undone", "undo")
    list_display_links = None
    list_filter = (AliasFilter,)
    search_fields = ("name", "by")
    search_help_text = gettext_lazy("A part of a name, or of who did it.")

    @admin.display(description=gettext_lazy("when"))
    def when(self, row: ActionRow) -> str | SafeString:
        """Return when it began."""
        return instant(row.acted_at)

    @admin.display(description=gettext_lazy("who"))
    def who(self, row: ActionRow) -> str:
        """Return who did it, if that was said."""
        return visible(row.by) or "-"

    @admin.display(description=gettext_lazy("action"))
    def what(self, row: ActionRow) -> Any:
        """Return what was done."""
        return LABELS[row.kind]

    @admin.display(description=gettext_lazy("name"))
    def called(self, row: ActionRow) -> str:
        """Return its name, by which code and a command undo it."""
        return visible(row.name)

    @admin.display(description=gettext_lazy("messages to undo"))
    def left(self, row: Any) -> str:
        """Return how many messages an undo would look at."""
        return number(row.left)

    @admin.display(description=gettext_lazy("undone"))
    def undone(self, row: ActionRow) -> str | SafeString:
        """Return when it was undone, and by whom."""
        if row.undone_at is None:
            return "-"
        return format_html("{}, {}", instant(row.undone_at), visible(row.undone_by) or "-")

    @admin.display(description=gettext_lazy("Undo"))
    def undo(self, row: Any) -> str | SafeString:
        """Return a link to the page that undoes it."""
        return format_html('<a href="{}">{}</a>', row.undo_address, _("Undo")) if row.undo_address else "-"

    @redirected_on_outage
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        titled = {"title": capfirst(self.opts.verbose_name_plural)}  # Django's says to select one, and none has a page
        return super().changelist_view(request, titled | (extra_context or {}))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[BoundedList]:
        return ActionList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        return rows if sees_all(request.user, alias_of(request)) else rows.filter(by=name_of_user(request))

    def get_urls(self) -> list[URLPattern]:
        return [path("", self.admin_site.admin_view(self.changelist_view), name="delayq_actionrow_changelist")]
