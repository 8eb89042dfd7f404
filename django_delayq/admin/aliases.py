"""Find the alias that a page shows. Each has its own database, so a page shows one at a time."""

from urllib.parse import urlencode

from django.http import HttpRequest

from django_delayq.conf import alias_names, get_alias, valid_aliases
from django_delayq.store.database import Database

PARAMETER = "alias"


def stored_aliases() -> list[str]:
    """Return the aliases with a store, in the order of the settings; all if none has one, because rows may be left."""
    return [alias.name for alias in valid_aliases() if alias.store is not None] or alias_names()


def opening_alias() -> str:
    """Return the alias for an address that names none: the first with a store.

    The dashboard and the lists agree on it.
    """
    return stored_aliases()[0]


def alias_of(request: HttpRequest) -> str:
    """Return the alias that the address names, with a store or without; else the one that pages open on."""
    named = request.GET.get(PARAMETER)
    return named if named in alias_names() else opening_alias()


def database_of(alias: str) -> Database:
    """Return the database with the tables of an alias, whether it has a store or not."""
    return Database(alias, get_alias(alias).database)


def query_of(alias: str, **query: str) -> str:
    """Return the query string that asks for `query` of `alias`. The alias is left out where there is only one."""
    if len(alias_names()) > 1:
        query[PARAMETER] = alias
    return f"?{urlencode(query)}" if query else ""
