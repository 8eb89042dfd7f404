"""Which rows are meant, as a value: what a list was narrowed to, so that a job in another process finds the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.apps import apps
from django.contrib.admin.views.main import ERROR_FLAG, IGNORED_PARAMS, PAGE_VAR
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_delayq.admin.aliases import PARAMETER, alias_of
from django_delayq.admin.conditions import asked, condition, is_condition, now_utc
from django_delayq.admin.moves import last_pk
from django_delayq.admin.search import find
from django_delayq.conf import get_alias
from django_delayq.fields import to_epoch_ms
from django_delayq.message import from_ms
from django_delayq.models import MessageRow

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

    def rows(self) -> QuerySet[Any]:
        """Those that match now. What is measured from now, such as the last hour, is measured from then."""
        rows = model_named(self.model)._default_manager.using(get_alias(self.alias).database).filter(alias=self.alias)
        for parameter, value in self.conditions.items():
            rows = rows.filter(condition(parameter, value, from_ms(self.now_ms)))
        return find(rows, self.search) if self.search else rows

    def words(self) -> str:
        """The conditions for people: `key=order.close, search=order:*`."""
        named = {**self.conditions, **({"search": self.search} if self.search else {})}
        return ", ".join(f"{name}={value}" for name, value in named.items())


def selection_of(request: HttpRequest, model: type[MessageRow]) -> Selection:
    """What the list at this address shows: all that match.

    Raises `ValueError` where the site narrows it by a filter of its own: a job would take more than the list shows.
    """
    foreign = sorted(name for name in request.GET if not (name in _OF_LISTS or is_condition(name)))
    if foreign:
        raise ValueError(
            _("The filter %(names)s is the site's own, and can't be repeated in the background: choose fewer messages.")
            % {"names": ", ".join(foreign)}
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


def model_named(name: str) -> type[MessageRow]:
    """One of the three tables' models."""
    model: type[MessageRow] = apps.get_model("delayq", name)
    return model
