"""Lists that are read-only and bound the cost of a page: the rows that it counts, and its time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME, ActionForm
from django.contrib.admin.options import ShowFacets
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.core.exceptions import BadRequest
from django.core.paginator import Paginator
from django.db import OperationalError, connections, transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from django_delayq.admin.access import alias_of, query_of
from django_delayq.admin.message.errors import hide_errors
from django_delayq.conf import get_alias

NUL = "\0"
"""A character that no text of a row has: names have no control characters, and PostgreSQL refuses this one."""

COUNTED = 10_000
"""The most rows that a list counts; if there are more, it says so."""

FOUND = 1_000
"""The most rows that a search counts."""

LIMIT_S = 2.0
"""The longest time in seconds that finding the rows of a page may take."""

_MOST_DIGITS = len(str(2**63 - 1))

_SQLITE_STEPS = 10_000


class TooSlow(Exception):
    """The rows of a page could not be found within the limit."""


class Searched(NamedTuple):
    """The result of a search in payloads: the rows found, how many rows were looked at, and the last row looked at.

    `is_whole` is False if the search stopped before the end, so that there may be more.
    """

    pks: list[int]
    looked: int
    last: int
    is_whole: bool


class StoppedSearch(NamedTuple):
    """A search in the payloads of `rows` that stopped before the end."""

    rows: QuerySet[Any]
    text: str
    found: Searched


def stopped_search(request: HttpRequest) -> StoppedSearch | None:
    """Return the search that stopped before the end, as the list has noted it on its request; None if none did."""
    return getattr(request, "delayq_stopped", None)


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # not generic at run time
    """Pages of the first `COUNTED` rows: a full count would read the whole table, a far page all rows before it.

    `is_many` says that more than `FOUND` rows are known to match. Then the pages show `FOUND` rows, and none are
    counted.
    """

    is_many = False

    @property
    def most(self) -> int:
        """Return how many rows the pages show at most."""
        return FOUND if self.is_many else COUNTED

    @cached_property
    def counted(self) -> int:
        """Return how many rows there are, at most `most` + 1."""
        rows: Any = self.object_list
        return self.most + 1 if self.is_many else int(rows.order_by()[: self.most + 1].count())

    @cached_property
    def count(self) -> int:
        return min(self.counted, self.most)

    @property
    def is_capped(self) -> bool:
        """Return whether there are more rows than the pages show."""
        return self.counted > self.most


@contextmanager
def time_limit(using: str) -> Iterator[None]:
    """Raise `TooSlow` for queries in the block that take over `LIMIT_S`, on each database that a store can use."""
    limits = {"postgresql": _limit_postgresql, "sqlite": _limit_sqlite, "mysql": _limit_mysql}
    limit = limits.get(connections[using].vendor)
    if limit is None:
        yield
        return
    ends = time.monotonic() + LIMIT_S
    try:
        with limit(using):
            yield
    except OperationalError as error:
        if time.monotonic() < ends:
            raise
        raise TooSlow from error


@contextmanager
def _limit_postgresql(using: str) -> Iterator[None]:
    # Within a transaction, so that the limit ends with it, even behind a pooler that lends connections by transaction.
    with transaction.atomic(using), connections[using].cursor() as cursor:
        outer = connections[using].savepoint_ids
        if outer:
            cursor.execute("SELECT current_setting('statement_timeout')")
            (before,) = cursor.fetchone()
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [f"{LIMIT_S * 1000:.0f}ms"])
        yield
        if outer:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [before])


@contextmanager
def _limit_mysql(using: str) -> Iterator[None]:
    connection: Any = connections[using]
    variable, units = ("max_statement_time", 1) if connection.mysql_is_mariadb else ("max_execution_time", 1000)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT @@SESSION.{variable}")
        (before,) = cursor.fetchone()
        cursor.execute(f"SET SESSION {variable} = {LIMIT_S * units:g}")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION {variable} = {before}")


@contextmanager
def _limit_sqlite(using: str) -> Iterator[None]:
    connection = connections[using]
    connection.ensure_connection()
    ends = time.monotonic() + LIMIT_S
    connection.connection.set_progress_handler(lambda: time.monotonic() > ends, _SQLITE_STEPS)
    try:
        yield
    finally:
        connection.connection.set_progress_handler(None, _SQLITE_STEPS)


class BoundedList(ChangeList):
    """A page of rows, found within the time limit or not at all."""

    stopped: StoppedSearch | None = None
    """The search that found the rows of this page, if it stopped before the end of the table."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        if not self.sortable_by:  # Django only leaves out the links, and would still sort by any column
            self.params.pop(ORDER_VAR, None)
        return super().get_ordering(request, queryset)

    def get_results(self, request: HttpRequest) -> None:
        admin: Any = self.model_admin
        self.stopped = stopped_search(request)
        self.query = getattr(request, "delayq_search", self.query)  # for the box: an address may have a token for it
        self.queryset = self.queryset.defer(*admin.not_in_lists)
        try:
            with time_limit(self.queryset.db):
                super().get_results(request)
                if not self.multi_page:  # a list may have room for more than its paginator shows
                    self.result_list: Any = self.paginator.object_list[: self.result_count]
                found = list(self.result_list)
                hide_errors(request, found)
                self.result_list = list(map(admin.shown, found))
        except TooSlow:
            say_too_slow(request)
            self.queryset = self.queryset.none()
            super().get_results(request)

    def url_for_result(self, result: Any) -> str:
        return super().url_for_result(result) + query_of(result.alias)


class BoundedActionForm(ActionForm):
    """Django's form for django-unfold, which shows the button only if its Alpine code knows the chosen action."""

    action = forms.ChoiceField(label=ActionForm.base_fields["action"].label, widget=forms.Select({"x-model": "action"}))


class BoundedAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    """The base of all our lists. Their rows are not added, changed or deleted here."""

    action_form = BoundedActionForm
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 0
    sortable_by = ()
    change_list_template = "admin/delayq/change_list.html"
    not_in_lists: tuple[str, ...] = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **options: Any
    ) -> HttpResponse | None:
        # Django passes on whatever was sent as the keys of ticked rows, and ignores a search that is not possible.
        if not all(map(is_primary_key, request.POST.getlist(ACTION_CHECKBOX_NAME))):
            raise BadRequest(f"{ACTION_CHECKBOX_NAME} is to be the primary keys of rows.")
        if any(NUL in value for value in request.GET.values()):
            raise BadRequest("The address has a NUL character, which no row has.")
        return super().response_action(request, queryset, *args, **options)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return BoundedList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        alias = alias_of(request)
        return super().get_queryset(request).using(get_alias(alias).database).filter(alias=alias)

    @property
    def has_own_queryset(self) -> bool:
        """Return whether the site overrides `get_queryset`. A background job can't apply the override."""
        return not type(self).get_queryset.__module__.startswith("django_delayq.")

    def shown(self, row: Any) -> Any:
        """Return a row as the list shows it."""
        return row

    @property
    def filter_parameters(self) -> set[str]:
        """Return the parameters of the address that the filters take."""
        return {parameter for each in self.list_filter for parameter in _parameters_of(each)}

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        # Only what the filters ask for: `?data__contains=` would tell of payloads that the viewer may not see.
        return lookup in self.filter_parameters


def is_primary_key(text: str) -> bool:
    """Return whether `text` may pass as a primary key: a number of at most 18 digits, which every database stores."""
    return text.isdecimal() and len(text) < _MOST_DIGITS


def say_too_slow(request: HttpRequest) -> None:
    """Warn that no rows are shown, because finding them took too long."""
    messages.warning(
        request,
        _("Nothing is shown: finding the rows took over %(limit)g s. Narrow the list by a key or an id.")
        % {"limit": LIMIT_S},
    )


def _parameters_of(list_filter: Any) -> set[str]:
    """Return the parameters of a filter; none for a site's own filter of a kind that does not name them."""
    names = (getattr(list_filter, "parameter_name", None), *getattr(list_filter, "parameters", ()))
    return {name for name in names if name}
