"""Which alias a page shows: each has its own database, so a page shows one at a time."""

from urllib.parse import urlencode

from django.http import HttpRequest

from django_delayq.conf import alias_names, get_alias, valid_aliases
from django_delayq.store.database import Database

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


def database_of(alias: str) -> Database:
    """The database where the tables of an alias are, whether it has a store or not."""
    return Database(alias, get_alias(alias).database)


def query_of(alias: str, **query: str) -> str:
    """What an address needs at its end to ask for `query` of `alias`, which is left out where there is only one."""
    if len(alias_names()) > 1:
        query[PARAMETER] = alias
    return f"?{urlencode(query)}" if query else ""
