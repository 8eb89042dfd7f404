"""LOCATION as a dict, for nodes and TLS: it says the same as a URL, but no password needs to be quoted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.views.decorators.debug import sensitive_variables

from django_delayq.support.validation import did_you_mean

_LOGIN = ("username", "password")
_SENTINEL_LOGIN = ("sentinel_username", "sentinel_password")
_TLS = (
    "ca_certs",
    "ca_path",
    "certfile",
    "keyfile",
    "password",
    "cert_reqs",
    "check_hostname",
    "min_version",
    "ciphers",
)


@sensitive_variables()
def url_of(location: Mapping[Any, Any]) -> str:
    """Return the URL that says what the dict says.

    Raises `ImproperlyConfigured` with the name and the fix, and no value.
    """
    kinds = [kind for kind in _KINDS if kind in location]
    if len(kinds) != 1:
        has = " and ".join(f'"{kind}"' for kind in kinds) or "neither"
        raise ImproperlyConfigured(
            f'LOCATION is a dict with {has}; give it "cluster", the "HOST:PORT" of some nodes, or "sentinels" and '
            '"name". One server is written as text: redis://HOST:PORT/DB.'
        )
    return _KINDS[kinds[0]](location)


@sensitive_variables()
def _cluster(location: Mapping[Any, Any]) -> str:
    _check_names("LOCATION", location, ("cluster", *_LOGIN, "tls"))
    return f"{_scheme(location)}+cluster://{_login(location)}{_hosts(location, 'cluster')}{_query(location, ())}"


@sensitive_variables()
def _sentinels(location: Mapping[Any, Any]) -> str:
    _check_names("LOCATION", location, ("sentinels", "name", "db", *_LOGIN, *_SENTINEL_LOGIN, "tls"))
    name, db = location.get("name"), location.get("db", 0)
    if not isinstance(name, str) or not name:
        raise ImproperlyConfigured('LOCATION has no "name": give the one under which the sentinels watch the primary.')
    if not isinstance(db, int) or isinstance(db, bool) or db < 0:
        raise ImproperlyConfigured(f'LOCATION["db"] is {db!r}; give the number of a database.')
    address = f"{_login(location)}{_hosts(location, 'sentinels')}/{quote(name, safe='')}/{db}"
    return f"{_scheme(location)}+sentinel://{address}{_query(location, _SENTINEL_LOGIN)}"


_KINDS: Mapping[str, Callable[[Mapping[Any, Any]], str]] = {"cluster": _cluster, "sentinels": _sentinels}


def _check_names(where: str, given: Mapping[Any, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise ImproperlyConfigured(f"{where} has no setting {name!r}: {did_you_mean(str(name), known)}")


def _hosts(location: Mapping[Any, Any], name: str) -> str:
    hosts = location[name]
    if not isinstance(hosts, list | tuple) or not hosts or not all(isinstance(host, str) and host for host in hosts):
        raise ImproperlyConfigured(f'LOCATION["{name}"] is no list of "HOST:PORT"; give the addresses of some.')
    if any(mark in host for host in hosts for mark in "@/?,#"):
        raise ImproperlyConfigured(f'LOCATION["{name}"] has more than "HOST:PORT" in it; a login has its own names.')
    return ",".join(hosts)


@sensitive_variables()
def _login(location: Mapping[Any, Any]) -> str:
    username, password = (_text(location, name) for name in _LOGIN)
    return f"{username}:{password}@" if username or password else ""


@sensitive_variables()
def _text(location: Mapping[Any, Any], name: str) -> str:
    value = location.get(name)
    if value is not None and not isinstance(value, str):
        raise ImproperlyConfigured(f'LOCATION["{name}"] is {type(value).__name__}; give a str.')
    return quote(value or "", safe="")


def _scheme(location: Mapping[Any, Any]) -> str:
    tls = location.get("tls")
    if tls is not None and not isinstance(tls, bool | Mapping):
        names = ", ".join(_TLS)
        raise ImproperlyConfigured(f'LOCATION["tls"] is {type(tls).__name__}; give True, or a dict of {names}.')
    return "redis" if tls is None or tls is False else "rediss"


@sensitive_variables()
def _query(location: Mapping[Any, Any], names: Sequence[str]) -> str:
    options = {name: location[name] for name in names if location.get(name) is not None}
    tls = location.get("tls")
    if isinstance(tls, Mapping):
        _check_names('LOCATION["tls"]', tls, _TLS)
        options.update({f"ssl_{name}": value for name, value in tls.items() if value is not None})
    return f"?{urlencode(options, quote_via=quote)}" if options else ""
