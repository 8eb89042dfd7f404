"""Lists of the admin that are read-only, show one alias at a time, and bound the cost of a page."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME, ActionForm
from django.contrib.admin.options import ShowFacets
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import BadRequest
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from django_delayq.admin.aliases import alias_of, query_of
from django_delayq.admin.lists.conditions import NUL
from django_delayq.admin.lists.page_cost import LIMIT_S, CappedPaginator, TooSlow, time_limit
from django_delayq.admin.lists.search import StoppedSearch, stopped_search
from django_delayq.conf import get_alias

_MOST_DIGITS = len(str(2**63 - 1))


class BoundedList(ChangeList):
    """A page of rows, found within the time limit or not at all."""

    stopped: StoppedSearch | None = None
    """The search that found the rows of this page, if it stopped before the end of the table."""

    def get_results(self, request: HttpRequest) -> None:
        admin: Any = self.model_admin
        self.stopped = stopped_search(request)
        self.queryset = self.queryset.defer(*admin.not_in_lists)
        try:
            with time_limit(self.queryset.db):
                super().get_results(request)
                if not self.multi_page:  # a list may have room for more than its paginator shows
                    self.result_list: Any = self.paginator.object_list[: self.result_count]
                self.result_list = list(self.result_list)
        except TooSlow:
            say_too_slow(request)
            self.queryset = self.queryset.none()
            super().get_results(request)

    def url_for_result(self, result: Any) -> str:
        return super().url_for_result(result) + query_of(result.alias)


class BoundedActionForm(ActionForm):
    """Django's form, for django-unfold: it shows the button of an action only if Alpine knows that one is chosen."""

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
        # Django hands on whatever was sent as the keys of what was ticked, and leaves out a search that can't be.
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
    def filter_parameters(self) -> set[str]:
        """Return the parameters of the address that the filters take."""
        return {parameter for each in self.list_filter for parameter in _parameters_of(each)}

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        # Only what the filters ask for: `?data__contains=` would tell of payloads that the viewer may not see.
        return lookup in self.filter_parameters


def is_primary_key(text: str) -> bool:
    """Return whether `text` can be a primary key: a number, and not larger than databases keep."""
    return text.isdecimal() and len(text) < _MOST_DIGITS


def say_too_slow(request: HttpRequest) -> None:
    """Warn that nothing is shown, and why."""
    messages.warning(
        request,
        _("Nothing is shown: finding the rows took over %(limit)g s. Narrow the list by a key or an id.")
        % {"limit": LIMIT_S},
    )


def _parameters_of(list_filter: Any) -> set[str]:
    """Return the parameters of a filter. For a site's own filter of another kind they are not known: none."""
    names = (getattr(list_filter, "parameter_name", None), *getattr(list_filter, "parameters", ()))
    return {name for name in names if name}
