"""The rows that a list was narrowed to, as a value from which a job in another process finds the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.apps import apps
from django.contrib.admin.views.main import ERROR_FLAG, IGNORED_PARAMS, PAGE_VAR
from django.db.models import QuerySet
from django.forms import BooleanField
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_delayq.admin.aliases import PARAMETER, alias_of
from django_delayq.admin.bulk.moves import PAGE, Page, last_pk, next_page
from django_delayq.admin.formatting import listed
from django_delayq.admin.lists.conditions import asked, condition, is_condition, now_utc
from django_delayq.admin.lists.search import asks_for_data, find, find_data
from django_delayq.conf import get_alias
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage
from django_delayq.support.timestamps import from_ms, to_epoch_ms

TABLES: tuple[type[MessageRow], ...] = (ReadyMessage, ErrorMessage, FinishMessage)
"""The tables where a message may be, under one primary key, in the order in which it passes through them."""

LOOKED = 2_000
"""The most payloads that a step looks into, because on SQLite nobody else can write meanwhile."""

_OF_LISTS = {PARAMETER, ERROR_FLAG, PAGE_VAR, *IGNORED_PARAMS}


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of a table that matched a list's filters and search at `now_ms`, up to the primary key `until`."""

    alias: str
    model: str
    now_ms: int
    until: int
    conditions: Mapping[str, str] = field(default_factory=dict)
    search: str = ""

    @property
    def is_in_data(self) -> bool:
        """Return whether the search looks into payloads."""
        return asks_for_data(self.search)

    def next_page(self, after: int) -> Page | None:
        """Return the next page of rows that match now, with primary keys over `after`; None after the last."""
        if not self.is_in_data:
            return next_page(self.rows(), after=after, until=self.until)
        rows = self.rows().filter(pk__gt=after, pk__lte=self.until).order_by("pk")
        found = find_data(rows, self.search, most_looked=LOOKED, most_found=PAGE)
        if not found.looked:
            return None
        return Page(list(rows.filter(pk__in=found.pks).defer("data")), found.looked, found.last)

    def rows(self) -> QuerySet[Any]:
        """Return the rows that match now, whatever is in their payloads.

        Conditions relative to now, such as the last hour, are relative to `now_ms`.
        """
        rows = model_named(self.model)._default_manager.using(get_alias(self.alias).database).filter(alias=self.alias)
        for parameter, value in self.conditions.items():
            rows = rows.filter(condition(parameter, value, from_ms(self.now_ms)))
        return find(rows, self.search) if self.search and not self.is_in_data else rows

    def words(self) -> str:
        """Return the conditions for people: `key=order.close, search=order:*`."""
        named = {**self.conditions, **({"search": self.search} if self.search else {})}
        return ", ".join(f"{name}={value}" for name, value in named.items())


def selection_of(request: HttpRequest, model: type[MessageRow]) -> Selection:
    """Return the selection of all rows that the list at this address shows.

    Raises `ValueError` if the site narrows the list by a filter of its own: a job would take more than the list shows.
    """
    foreign = sorted(name for name in request.GET if not (name in _OF_LISTS or is_condition(name)))
    if foreign:
        raise ValueError(
            _("The filter %(names)s is the site's own, and can't be repeated in the background: choose fewer messages.")
            % {"names": listed(foreign)}
        )
    alias = alias_of(request)
    return Selection(
        alias=alias,
        model=str(model._meta.model_name),
        now_ms=to_epoch_ms(now_utc()),
        until=last_pk(model, alias),
        conditions=asked(request.GET.dict()),
        search=request.GET.get("q", "").strip(),
    )


def is_all(request: HttpRequest) -> bool:
    """Return whether an action is meant for all that match the filter, and not only for the ticked rows."""
    return BooleanField().to_python(request.POST.get("select_across", "0"))


def model_named(name: str) -> type[MessageRow]:
    """Return one of the three tables' models."""
    model: type[MessageRow] = apps.get_model("delayq", name)
    return model
