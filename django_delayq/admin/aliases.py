"""Which alias a page shows: each has its own database, so a page shows one at a time."""

from urllib.parse import urlencode

from django.http import HttpRequest

from django_delayq.conf import alias_names, get_alias

PARAMETER = "alias"


def stored_aliases() -> list[str]:
    """The aliases with a store, in the order of the settings; all when none has one, since rows may be left."""
    names = alias_names()
    return [name for name in names if get_alias(name).store is not None] or names


def alias_of(request: HttpRequest) -> str:
    """The alias that the address names, with a store or not, else the first that has one."""
    named = request.GET.get(PARAMETER)
    return named if named in alias_names() else stored_aliases()[0]


def query_of(alias: str) -> str:
    """What an address needs at its end to stay with `alias`."""
    return "" if alias == stored_aliases()[0] else f"?{urlencode({PARAMETER: alias})}"
