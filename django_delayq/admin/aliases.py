"""Which alias a page shows: each has its own database, so a page shows one at a time."""

from urllib.parse import urlencode

from django.http import HttpRequest

from django_delayq.conf import alias_names, valid_aliases

PARAMETER = "alias"


def stored_aliases() -> list[str]:
    """The aliases with a store, in the order of the settings; all when none has one, since rows may be left."""
    return [alias.name for alias in valid_aliases() if alias.store is not None] or alias_names()


def opening_alias() -> str:
    """What a page shows whose address names no alias: the first with a store. The dashboard and the lists agree."""
    return stored_aliases()[0]


def alias_of(request: HttpRequest) -> str:
    """The alias that the address names, with a store or not, else the one that pages open on."""
    named = request.GET.get(PARAMETER)
    return named if named in alias_names() else opening_alias()


def query_of(alias: str, **query: str) -> str:
    """What an address needs at its end to ask for `query` of `alias`, which is left out where there is only one."""
    if len(alias_names()) > 1:
        query[PARAMETER] = alias
    return f"?{urlencode(query)}" if query else ""
