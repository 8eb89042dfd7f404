"""The filters beside the lists, and the condition on rows that each of their values asks for.

A condition depends only on its value, on `now` and on the lanes of the alias, once `asked` has put times into UTC, so a
job can repeat it. The choices of a filter are found without a scan; only for a user who sees some of the rows are
these read, within the time limit.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import parse_qsl

from django.contrib import messages
from django.contrib.admin import ListFilter, ModelAdmin, SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.access import PARAMETER, alias_of, database_of, stored_aliases
from django_delayq.admin.bulk.changes import TABLES
from django_delayq.admin.formatting import now_utc, visible
from django_delayq.admin.lists.bounded import NUL, TooSlow, time_limit
from django_delayq.admin.visibility import sees_all, visible_rows
from django_delayq.api.handlers import Handler, handlers_by_key
from django_delayq.brokers import get_backend
from django_delayq.core.lanes import lanes_of, priority_of, queue_of
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage, ReportRow

RANGES = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
"""The spans of time that a filter offers, before now or after it."""

MOST_NAMES = 200
"""The most names that a filter offers."""

_CLOCKS_APART = timedelta(minutes=1)

MANY = 3
"""The last choice of the filter by failures takes messages with this many failed attempts, or more."""

Choices = Iterable[tuple[str, Any]]


def condition(parameter: str, value: str, now: datetime, alias: str) -> Q:
    """Return the condition on rows of `alias` that `parameter=value` asks for.

    Raises `ValueError` if there is no such value.
    """
    try:
        if parameter in _BY_LANES:
            return _BY_LANES[parameter](value, get_backend(alias).presence.lanes())
        return _CONDITIONS[parameter](value, now)
    except KeyError as error:
        raise ValueError(f"{parameter}={value!r} is no condition.") from error


def is_condition(parameter: str) -> bool:
    """Return whether a parameter of an address is a condition on rows."""
    return parameter in _CONDITIONS or parameter in _BY_LANES


def asked(address: Mapping[str, str]) -> dict[str, str]:
    """Return the conditions in the parameters of an address, in a form that means the same everywhere.

    People write instants in the viewer's zone. Here they are in UTC.
    """
    given = {name: value for name, value in address.items() if is_condition(name)}
    instants = {name: instant_of(value).isoformat() for name, value in given.items() if name in _INSTANTS and value}
    return {name: value for name, value in given.items() if name not in _INSTANTS} | instants


def instant_of(text: str) -> datetime:
    """Return the instant that a person wrote, in UTC. A text that names no zone is read in the viewer's zone.

    Raises `ValueError` if the text is no date and time.
    """
    try:
        instant = datetime.fromisoformat(text.strip())
        return (instant if timezone.is_aware(instant) else timezone.make_aware(instant)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        example = "2026-11-21 08:00"
        raise ValueError(
            _("%(value)s is no date and time; write it like %(example)s.") % {"value": repr(text), "example": example}
        ) from error


def held(now: datetime) -> Q:
    """Return the condition for rows that a worker holds, or held until its lease ran out.

    No move takes such a row. If the lease has run out, a worker must reclaim the row first.
    """
    # A row that runs was due by the database's clock. An index finds those, and leaves few rows to look at.
    return Q(token__isnull=False) & Q(due_at__lte=now + _CLOCKS_APART)


def _state(value: str, now: datetime) -> Q:
    free = Q(token__isnull=True)
    return {"pending": free & Q(due_at__gt=now), "ready": free & Q(due_at__lte=now), "running": held(now)}[value]


def _due(value: str, now: datetime) -> Q:
    if value == "overdue":
        return Q(due_at__lte=now)
    return Q(due_at__gt=now, due_at__lte=now + RANGES[value])


def _failures(value: str, now: datetime) -> Q:
    if value == "any":
        return Q(failures__gt=0)
    return Q(failures__gte=MANY) if value == str(MANY) else Q(failures=int(value))


def _is(field: str) -> Callable[[str, datetime], Q]:
    def condition(value: str, now: datetime) -> Q:
        _check_nul(field, value)
        return Q(**{field: value})

    return condition


def _check_nul(field: str, value: str) -> None:
    if NUL in value:
        raise ValueError(f"{field}={value!r} can't be: no row has that character, and PostgreSQL refuses it.")


def _of_queue(value: str, lanes: Collection[str]) -> Q:
    _check_nul("queue", value)
    names = lanes_of(value, lanes)
    return Q(queue__in=names) if names != [value] else Q(queue=value)


def _of_priority(value: str, lanes: Collection[str]) -> Q:
    if (priority := int(value)) == 0:
        return ~Q(queue__in=lanes)
    return Q(queue__in=[lane for lane in lanes if priority_of(lane) == priority])


_INSTANTS: Mapping[str, Callable[[str, datetime], Q]] = {
    "due_from": lambda value, now: Q(due_at__gte=instant_of(value)),
    "due_until": lambda value, now: Q(due_at__lt=instant_of(value)),
    "ended_from": lambda value, now: Q(ended_at__gte=instant_of(value)),
    "ended_until": lambda value, now: Q(ended_at__lt=instant_of(value)),
}
_CONDITIONS: Mapping[str, Callable[[str, datetime], Q]] = {
    **_INSTANTS,
    **{name: _is(name) for name in ("key", "outcome", "fingerprint")},
    "state": _state,
    "due": _due,
    "ended": lambda value, now: Q(ended_at__gt=now - RANGES[value]),
    "failures": _failures,
}
_BY_LANES: Mapping[str, Callable[[str, Collection[str]], Q]] = {"queue": _of_queue, "priority": _of_priority}


@dataclass(frozen=True, slots=True)
class Names:
    """The names in the rows of a table. Its queues are lanes, as the rows name them.

    `queues_of` has the queues of each key; it is None if they are not all known.
    """

    queues: set[str]
    keys: set[str]
    fingerprints: set[str] = field(default_factory=set)
    queues_of: dict[str, set[str]] | None = None


def names_in_rows(request: HttpRequest, model: type[Model]) -> Names:
    """Return the names in the rows of a table that the user may see. They are found once for all filters of a page.

    For a user who sees all rows an index gives them, without a look at each row.
    """
    names: Names | None = getattr(request, "delayq_names", None)
    if names is None:
        alias = alias_of(request)
        if sees_all(request.user, alias):
            names = _names_in_rows(model, alias)
        else:
            names = _names_in(visible_rows(request.user, model, alias)) if model in TABLES else Names(set(), set())
        request.delayq_names = names  # type: ignore[attr-defined]
    return names


def _names_in(rows: QuerySet[Any]) -> Names:
    """Return the names in these rows, at most `MOST_NAMES` of each kind.

    It may have to read every row. If that takes too long, there are no names.
    """
    fields = ("queue", "key", *(["fingerprint"] if rows.model is ErrorMessage else []))
    try:
        with time_limit(rows.db):
            found = {each: set(rows.order_by().values_list(each, flat=True).distinct()[:MOST_NAMES]) for each in fields}
    except TooSlow:
        found = {}
    queues, keys, fingerprints = (found.get(each, set()) for each in ("queue", "key", "fingerprint"))
    return Names(queues, keys, fingerprints)


def _names_in_rows(model: type[Model], alias: str) -> Names:
    from django_delayq.admin.lists.failure_groups import names_of_failed  # late, as in dashboard/urls.py
    from django_delayq.store.queries import ended_pairs, reported_pairs, waiting_pairs

    if model is ErrorMessage:
        failed = names_of_failed(alias)
        return Names(failed["queue"], failed["key"], failed["fingerprint"])
    pairs_of = {ReadyMessage: waiting_pairs, FinishMessage: ended_pairs, ReportRow: reported_pairs}[model]
    pairs = pairs_of(database_of(alias), MOST_NAMES)
    queues_of: dict[str, set[str]] = {}
    for queue, key in pairs:
        queues_of.setdefault(key, set()).add(queue)
    queues = {queue for queue, _key in pairs}
    return Names(queues, set(queues_of), queues_of=queues_of if len(pairs) < MOST_NAMES else None)


class ConditionFilter(SimpleListFilter):
    """A filter that narrows a list to the rows that meet the condition which its parameter and value name."""

    options: ClassVar[Choices] = ()

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Choices:
        return self.options

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        try:
            return queryset.filter(condition(str(self.parameter_name), value, now_utc(), alias_of(request)))
        except ValueError as error:
            raise IncorrectLookupParameters(error) from error


class NameFilter(ConditionFilter):
    """A filter by a name that rows have or handlers know. The name in the address is offered too."""

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Choices:
        self.in_rows = names_in_rows(request, model_admin.model)
        chosen, alias = self.value(), alias_of(request)
        handlers = handlers_by_key(alias) if sees_all(request.user, alias) else {}
        names = self.names(handlers) | ({chosen} if chosen else set())
        return [(name, visible(name)) for name in sorted(names)]

    def names(self, handlers: Mapping[str, Handler[Any, Any]]) -> set[str]:
        """Return the names to offer; `handlers` are those known here, by key."""
        raise NotImplementedError


class QueueFilter(NameFilter):
    """A filter by queue, whatever the priority."""

    title = gettext_lazy("queue")
    parameter_name = "queue"

    def names(self, handlers: Mapping[str, Handler[Any, Any]]) -> set[str]:
        return {handler.queue for handler in handlers.values()} | {queue_of(lane) for lane in self.in_rows.queues}


class PriorityFilter(ConditionFilter):
    """A filter by priority, shown where a row has another one than 0."""

    title = gettext_lazy("priority")
    parameter_name = "priority"

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Choices:
        priorities = {priority_of(lane) for lane in names_in_rows(request, model_admin.model).queues} | {0}
        return [(str(each), str(each)) for each in sorted(priorities, reverse=True)] if len(priorities) > 1 else []


class KeyFilter(NameFilter):
    """A filter by execute key."""

    title = gettext_lazy("key")
    parameter_name = "key"

    def names(self, handlers: Mapping[str, Handler[Any, Any]]) -> set[str]:
        return set(handlers) | self.in_rows.keys

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        found = super().queryset(request, queryset)
        key, queues_of = self.value(), self.in_rows.queues_of
        if key is None or queues_of is None:
            return found
        return found.filter(queue__in=queues_of.get(key, ()))  # the index begins with the queue


class FingerprintFilter(NameFilter):
    """A filter by the kind of failure: the type of the exception, and the place in the site's code."""

    title = gettext_lazy("kind of failure")
    parameter_name = "fingerprint"

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Choices:
        return [(name, shown or gettext_lazy("unknown")) for name, shown in super().lookups(request, model_admin)]

    def names(self, handlers: Mapping[str, Handler[Any, Any]]) -> set[str]:
        return self.in_rows.fingerprints


class StateFilter(ConditionFilter):
    """A filter by the state of a message that waits or runs."""

    title = gettext_lazy("state")
    parameter_name = "state"
    options = (
        ("pending", gettext_lazy("pending: not due yet")),
        ("ready", gettext_lazy("ready: due")),
        ("running", gettext_lazy("running")),
    )


class DueFilter(ConditionFilter):
    """A filter by due time."""

    title = gettext_lazy("due time")
    parameter_name = "due"
    options = (
        ("overdue", gettext_lazy("overdue")),
        ("1h", gettext_lazy("within an hour")),
        ("24h", gettext_lazy("within 24 hours")),
        ("7d", gettext_lazy("within 7 days")),
    )


class EndedFilter(ConditionFilter):
    """A filter by the time of the end."""

    title = gettext_lazy("time of its end")
    parameter_name = "ended"
    options = (
        ("1h", gettext_lazy("last hour")),
        ("24h", gettext_lazy("last 24 hours")),
        ("7d", gettext_lazy("last 7 days")),
    )


class FailuresFilter(ConditionFilter):
    """A filter by the number of failed attempts."""

    title = gettext_lazy("failed attempts")
    parameter_name = "failures"
    options = (
        ("0", gettext_lazy("none")),
        ("any", gettext_lazy("retried: one or more")),
        *((str(count), str(count)) for count in range(1, MANY)),
        (str(MANY), gettext_lazy("3 or more")),
    )


class OutcomeFilter(ConditionFilter):
    """A filter by how the message left the ready table."""

    title = gettext_lazy("outcome")
    parameter_name = "outcome"
    options = tuple(FinishMessage.Outcome.choices)


class AliasFilter(SimpleListFilter):
    """A choice of the alias to show, where there are several.

    It doesn't filter: the list itself begins with one alias.
    """

    title = gettext_lazy("alias")
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


class RangeFilter(ListFilter):
    """Two fields for moments in the viewer's zone. The range includes the first moment and not the last.

    Text that is no moment is reported and shows no rows, so that an action on all that match does not take every row.
    """

    template = "admin/delayq/range_filter.html"
    parameters: ClassVar[tuple[str, str]]
    field_path = ""  # unfold asks each filter for the name of its field or of its one parameter

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
            return queryset.filter(self._condition(alias_of(request)))
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

    def _condition(self, alias: str) -> Q:
        since, until = (self.typed[parameter] for parameter in self.parameters)
        if since and until and instant_of(since) >= instant_of(until):
            told = {"since": since, "until": until}
            raise ValueError(_("The range ends before it begins: %(until)s is not after %(since)s.") % told)
        found = Q()
        for parameter, text in self.typed.items():
            if text:
                found &= condition(parameter, text, now_utc(), alias)
        return found


class DueRangeFilter(RangeFilter):
    """A filter by due time."""

    title = gettext_lazy("due time, from … until …")
    parameters = ("due_from", "due_until")


class EndedRangeFilter(RangeFilter):
    """A filter by the time of the end."""

    title = gettext_lazy("time of its end, from … until …")
    parameters = ("ended_from", "ended_until")
