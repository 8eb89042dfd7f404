"""The filters by a typed range of time."""

from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import parse_qsl

from django.contrib import messages
from django.contrib.admin import ListFilter, ModelAdmin
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.lists.conditions import condition, instant_of, now_utc


class RangeFilter(ListFilter):
    """Two fields for moments in the viewer's zone. The range includes the first moment and not the last.

    Text that is no moment is reported and shows no rows, so that an action on all that match does not take every row.
    """

    template = "admin/delayq/range_filter.html"
    parameters: ClassVar[tuple[str, str]]

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: type[Model], model_admin: "ModelAdmin[Any]"
    ) -> None:
        super().__init__(request, params, model, model_admin)
        self.typed: dict[str, str] = {name: params.pop(name, [""])[-1].strip() for name in self.parameters}

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return list(self.parameters)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        try:
            return queryset.filter(self._condition())
        except ValueError as error:
            if request.method != "POST":  # an action moves nothing then, and comes back to the list, which says it
                messages.error(request, str(error))
            return queryset.none()

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        others = changelist.get_query_string(remove=[*self.parameters, PAGE_VAR])
        since, until = self.parameters
        yield {
            "used": any(self.typed.values()),
            "fields": [(since, _("from"), self.typed[since]), (until, _("until"), self.typed[until])],
            "hidden": parse_qsl(others.removeprefix("?"), keep_blank_values=True),
            "without": others,
        }

    def _condition(self) -> Q:
        since, until = (self.typed[parameter] for parameter in self.parameters)
        if since and until and instant_of(since) >= instant_of(until):
            told = {"since": since, "until": until}
            raise ValueError(_("The range ends before it begins: %(until)s is not after %(since)s.") % told)
        found = Q()
        for parameter, text in self.typed.items():
            if text:
                found &= condition(parameter, text, now_utc())
        return found


class DueRangeFilter(RangeFilter):
    """A filter by due time."""

    title = gettext_lazy("due time, from … until …")
    parameters = ("due_from", "due_until")


class EndedRangeFilter(RangeFilter):
    """A filter by the time of the end."""

    title = gettext_lazy("time of its end, from … until …")
    parameters = ("ended_from", "ended_until")
