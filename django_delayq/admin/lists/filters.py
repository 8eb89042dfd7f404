"""The filters beside the lists. Finding their choices never scans a table."""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from django.contrib.admin import ModelAdmin, SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from django_delayq.admin.aliases import PARAMETER, alias_of, stored_aliases
from django_delayq.admin.lists.conditions import MANY, condition, now_utc
from django_delayq.admin.lists.names import Names, known_keys, known_queues, names_in_rows
from django_delayq.models import FinishMessage

Choices = Iterable[tuple[str, Any]]


class ConditionFilter(SimpleListFilter):
    """A filter that narrows a list to one of the conditions of its parameter."""

    options: ClassVar[Choices] = ()

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Choices:
        return self.options

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        try:
            return queryset.filter(condition(str(self.parameter_name), value, now_utc()))
        except ValueError as error:
            raise IncorrectLookupParameters(error) from error


class NameFilter(ConditionFilter):
    """A filter by a name that rows have or handlers know. The name in the address is offered too."""

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: type[Model], model_admin: Any) -> None:
        self.request = request
        self.alias = alias_of(request)
        self.model = model
        super().__init__(request, params, model, model_admin)

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Choices:
        chosen = self.value()
        return [(name, name) for name in sorted(self.names() | ({chosen} if chosen else set()))]

    def names(self) -> set[str]:
        """Return the names to offer."""
        raise NotImplementedError

    @cached_property
    def in_rows(self) -> Names:
        """Return the names that rows have. They are found once for all filters of a page."""
        names: Names | None = getattr(self.request, "delayq_names", None)
        if names is None:
            names = self.request.delayq_names = names_in_rows(self.model, self.alias)  # type: ignore[attr-defined]
        return names


class QueueFilter(NameFilter):
    """A filter by queue."""

    title = _("queue")
    parameter_name = "queue"

    def names(self) -> set[str]:
        return known_queues(self.alias) | self.in_rows.queues


class KeyFilter(NameFilter):
    """A filter by execute key."""

    title = _("key")
    parameter_name = "key"

    def names(self) -> set[str]:
        return known_keys(self.alias) | self.in_rows.keys

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        found = super().queryset(request, queryset)
        key, queues_of = self.value(), self.in_rows.queues_of
        if key is None or queues_of is None:
            return found
        return found.filter(queue__in=queues_of.get(key, ()))  # the index begins with the queue


class FingerprintFilter(NameFilter):
    """A filter by the kind of failure: the type of the exception, and the place in the site's code."""

    title = _("kind of failure")
    parameter_name = "fingerprint"

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Choices:
        return [(name, name or _("unknown")) for name, _same in super().lookups(request, model_admin)]

    def names(self) -> set[str]:
        return self.in_rows.fingerprints


class StateFilter(ConditionFilter):
    """A filter by the state of a message that waits or runs."""

    title = _("state")
    parameter_name = "state"
    options = (("pending", _("pending: not due yet")), ("ready", _("ready: due")), ("running", _("running")))


class DueFilter(ConditionFilter):
    """A filter by due time."""

    title = _("due time")
    parameter_name = "due"
    options = (
        ("overdue", _("overdue")),
        ("1h", _("within an hour")),
        ("24h", _("within 24 hours")),
        ("7d", _("within 7 days")),
    )


class EndedFilter(ConditionFilter):
    """A filter by the time of the end."""

    title = _("time of its end")
    parameter_name = "ended"
    options = (("1h", _("last hour")), ("24h", _("last 24 hours")), ("7d", _("last 7 days")))


class FailuresFilter(ConditionFilter):
    """A filter by the number of failed attempts."""

    title = _("failed attempts")
    parameter_name = "failures"
    options = (
        ("0", _("none")),
        ("any", _("retried: one or more")),
        *((str(count), str(count)) for count in range(1, MANY)),
        (str(MANY), _("3 or more")),
    )


class OutcomeFilter(ConditionFilter):
    """A filter by how the message left the ready table."""

    title = _("outcome")
    parameter_name = "outcome"
    options = tuple(FinishMessage.Outcome.choices)


class AliasFilter(SimpleListFilter):
    """A choice of the alias to show, where there are several.

    It doesn't filter: the list itself begins with one alias.
    """

    title = _("alias")
    parameter_name = PARAMETER

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Choices:
        self.shown = alias_of(request)
        names = stored_aliases()
        return [(name, name) for name in names] if len(names) > 1 else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        for name, shown in self.lookup_choices:
            query_string = changelist.get_query_string({PARAMETER: name})
            yield {"selected": name == self.shown, "query_string": query_string, "display": shown}
