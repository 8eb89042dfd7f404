"""Parse LOCATION: where the Redis server is and how to log in. Passwords are hidden by support/sanitize.py.

A dict is first converted into the URL that says the same, so that the same rules hold for both.
"""

import os
import re
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from django.views.decorators.debug import sensitive_variables
from redis import asyncio as aredis
from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection

from django_delayq.brokers.addresses import checked, no_hosts
from django_delayq.brokers.redis.client.connections import (
    PORT,
    Address,
    AsyncPrimaryConnection,
    AsyncTLSPrimaryConnection,
    Location,
    PrimaryConnection,
    Sentinels,
    TLSPrimaryConnection,
)
from django_delayq.support.sanitize import hidden

SENTINEL_PORT = 26379


@sensitive_variables()
def parse_location(location: object) -> Location:
    """Parse LOCATION, without connecting or starting anything.

    Raises `ImproperlyConfigured`, naming the value and the fix.
    """
    url = url_of(location)
    if url.startswith("cache:"):
        return _parse_cache(url)
    if url.startswith("embedded://"):
        return _parse_embedded(url)
    scheme, _, _ = url.partition("//")
    if scheme.endswith("+sentinel:"):
        return _parse_sentinel(url, hide_password(url))
    if scheme.endswith("+cluster:"):
        return _parse_cluster(url, hide_password(url))
    return _parse_server(url, hide_password(url))


_FORMS = (
    "write redis://HOST:PORT/DB, rediss://…, unix:///PATH?db=N, redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB, "
    "redis+cluster://HOST:PORT,HOST:PORT, cache:ALIAS or embedded://[DIRECTORY]"
)


def hide_password(location: str) -> str:
    """Return `location` with `***` in place of its secrets, even if it is badly written. Errors and logs need this."""
    if location.startswith(("cache:", "embedded:")):
        return location
    return hidden(location, _HARMLESS_OPTIONS)


def as_written(location: object) -> object:
    """Return the LOCATION itself, or of "cache:ALIAS" the address that the site wrote in CACHES."""
    url = url_of(location)
    return _cache_address(url.removeprefix("cache:"))[0] if url.startswith("cache:") else location


def embedded_directory(location: object) -> Path | None:
    """Return the absolute directory of an `embedded://` LOCATION; None for any other LOCATION.

    Raises `ImproperlyConfigured`, naming the value and the fix.
    """
    url = url_of(location)
    if not url.startswith("embedded://"):
        return None
    directory = Path(url.removeprefix("embedded://") or "var/delayq")
    base = getattr(settings, "BASE_DIR", None)
    if base is None and not directory.is_absolute():
        raise ImproperlyConfigured(
            f"LOCATION {url!r} is relative to BASE_DIR, which the settings don't have: "
            f"set BASE_DIR, or write embedded:///ABSOLUTE/DIRECTORY."
        )
    return Path(base or "/", directory).resolve()


def stop_embedded(directory: Path) -> bool:
    """End the embedded server on `directory`. Return False if none runs. Raises `BrokerRefused` if it does not end."""
    from django_delayq.brokers.redis.client.embedded import stop  # needs fcntl, which Windows lacks

    return stop(directory)


def _parse_embedded(url: str) -> Location:
    # Imported here, because it needs fcntl, which Windows lacks; other locations work there.
    from django_delayq.brokers.redis.client.embedded import AsyncEmbeddedConnection, EmbeddedConnection

    directory = embedded_directory(url)
    return Location(f"embedded://{directory}", {"directory": directory}, EmbeddedConnection, AsyncEmbeddedConnection)


def _parse_cache(url: str) -> Location:
    alias = url.removeprefix("cache:")
    address, login = _cache_address(alias)
    parse = _parse_sentinel if "+sentinel:" in address else _parse_server
    return replace(parse(address, f"{url} ({hide_password(address)})", login), cache=url)


def _parse_sentinel(url: str, shown: str, given: Mapping[str, Any] | None = None) -> Location:
    found = re.fullmatch(r"(rediss?)\+sentinel://(.*@)?([^@/?]+)/([^@/?]+)(/\d*)?(?:\?(.*))?", url)
    if found is None:
        raise _unreadable(shown)
    scheme, login, hosts, name, db, query = found.groups(default="")
    primary = _parse_server(f"{scheme}://{login}sentinel{db}?{query}", shown, given, also=_SENTINEL_LOGIN)
    tls = {key: value for key, value in primary.options.items() if key.startswith("ssl_")}
    if scheme == "rediss":
        tls["ssl"] = True
    own = {key: primary.options[key] for key in _SENTINEL_LOGIN if key in primary.options}
    to_sentinels = tls | {key.removeprefix("sentinel_"): value for key, value in own.items()}
    options = {key: value for key, value in primary.options.items() if key not in own}
    asked = Sentinels(_addresses(hosts, SENTINEL_PORT, shown), unquote(name), to_sentinels)
    make, make_async = _TO_PRIMARY[scheme]
    return Location(shown, options | {"sentinels": asked}, make, make_async)


def _parse_cluster(url: str, shown: str) -> Location:
    found = re.fullmatch(r"(rediss?)\+cluster://(.*@)?([^@/?]+)/?(?:\?(.*))?", url)
    if found is None:
        raise _unreadable(shown)
    scheme, login, hosts, query = found.groups(default="")
    node = _parse_server(f"{scheme}://{login}cluster?{query}", shown)
    if "db" in node.options:
        raise ImproperlyConfigured(f"LOCATION {shown!r} names a database; a cluster has only one: leave db out.")
    options = {name: value for name, value in node.options.items() if name != "host"}
    return replace(node, options=options, nodes=_addresses(hosts, PORT, shown))


def _addresses(hosts: str, port: int, shown: str) -> tuple[Address, ...]:
    try:
        each = [urlsplit(f"//{host}") for host in hosts.split(",")]
        addresses = tuple((one.hostname or "", one.port or port) for one in each)
    except ValueError:  # a port is no number
        addresses = (("", 0),)
    if not all(host for host, _ in addresses):
        raise _unreadable(shown)
    return addresses


@sensitive_variables()
def _parse_server(url: str, shown: str, login: Mapping[str, Any] | None = None, also: Sequence[str] = ()) -> Location:
    """Parse the URL of one server. `shown` is the URL without secrets, for errors.

    `login` has options, such as a cache's, that count where the URL sets none. `also` has names of options that the URL
    may set in addition to the usual ones. Raises `ImproperlyConfigured`.
    """
    try:
        parts = urlsplit(url)
        address = {"username": parts.username, "password": parts.password, "host": parts.hostname}
        options = {"port": parts.port, **_read_query(parts.query)}
    except ValueError:  # its text may hold the password
        raise _unreadable(shown) from None
    is_socket = parts.scheme == "unix"
    if parts.scheme not in _CONNECTIONS or (not is_socket and "@" in parts.path + parts.query + parts.fragment):
        raise _unreadable(shown)
    if is_socket:
        if parts.hostname or not parts.path:
            raise ImproperlyConfigured(f"LOCATION {shown!r} names no socket; write unix:///PATH, with three slashes.")
        address["path"] = parts.path
    elif not re.fullmatch(r"/?\d*", parts.path):
        raise ImproperlyConfigured(f"LOCATION {shown!r} must end in the number of a database, as in {_EXAMPLE}.")
    elif parts.path.strip("/"):
        options.setdefault("db", int(parts.path.strip("/")))
    _check_options(options, {*_LOGIN, *also, *(_TLS_OPTIONS if parts.scheme == "rediss" else ())}, shown)
    options = {name: value for name, value in options.items() if value not in ("", None)}
    options = {**(login or {}), **options, **{name: unquote(text) for name, text in address.items() if text}}
    if parts.scheme == "rediss":
        _check_tls(options, shown)
        # redis-py before 6 has it off, and would give the password to any server with a certificate of a known CA.
        is_checked = options.get("ssl_cert_reqs", "required") not in ("none", ssl.CERT_NONE)
        options.setdefault("ssl_check_hostname", is_checked)
    else:
        options = {name: value for name, value in options.items() if not name.startswith("ssl_")}
    return Location(shown, options, *_CONNECTIONS[parts.scheme])


def _read_query(query: str) -> dict[str, Any]:
    """Return the options of a query. Raises `ValueError` if it can't be read: it may be the rest of a password."""
    options: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query.strip("&"))))
    if options.get("db"):
        options["db"] = int(options["db"])
    for name in ("ssl_check_hostname", "ssl_min_version"):
        if options.get(name):
            options[name] = _VALUES.get(options[name].lower(), options[name])
    return options


def _check_options(options: Mapping[str, Any], known: Collection[str], shown: str) -> None:
    for name in options:
        if name not in known and name != "port":
            raise ImproperlyConfigured(
                f"LOCATION {shown!r} has the unknown option {name!r}; it takes {', '.join(sorted(known))}."
            )
    if (options.get("db") or 0) < 0:
        raise ImproperlyConfigured(f"LOCATION {shown!r} has the database {options['db']}; give 0 or more.")


def _unreadable(shown: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(
        f"LOCATION {shown!r} can't be read; {_FORMS}, with special characters of a password percent-encoded."
    )


_EXAMPLE = "redis://127.0.0.1:6379/0"
_Connections = tuple[Callable[..., AbstractConnection], Callable[..., AsyncConnection]]
_CONNECTIONS: Mapping[str, _Connections] = {
    "redis": (Connection, aredis.Connection),
    "rediss": (SSLConnection, aredis.SSLConnection),
    "unix": (UnixDomainSocketConnection, aredis.UnixDomainSocketConnection),
}
_TO_PRIMARY: Mapping[str, _Connections] = {
    "redis": (PrimaryConnection, AsyncPrimaryConnection),
    "rediss": (TLSPrimaryConnection, AsyncTLSPrimaryConnection),
}
_VERSIONS = {str(version.value): version for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)}
_VALUES: Mapping[str, object] = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
    **_VERSIONS,
}

_USER = ("username", "password")
_LOGIN = ("db", *_USER)
_SENTINEL_LOGIN = ("sentinel_username", "sentinel_password")
_TLS = {
    **dict.fromkeys(("ca_certs", "ca_path", "certfile", "keyfile"), (str, os.PathLike)),
    **dict.fromkeys(("password", "cert_reqs", "ciphers"), (str,)),
    "check_hostname": (bool,),
    "min_version": (int,),
}
"""The names of redis-py's options for TLS without `ssl_`, and the types that they have in a dict."""

_TLS_OPTIONS = {f"ssl_{name}" for name in _TLS}
_HARMLESS_OPTIONS = {*_LOGIN, *_TLS_OPTIONS, "sentinel_username"} - {"password", "ssl_password"}


# TLS options that can't work are found here. redis-py would raise at each connect, as if Redis were away.

_TLS_CHOICES: Mapping[str, tuple[Collection[object], str]] = {
    "ssl_cert_reqs": (("none", "optional", "required", *ssl.VerifyMode), "none, optional or required"),
    "ssl_check_hostname": ((True, False), "true or false"),
    "ssl_min_version": (_VERSIONS.values(), " or ".join(f"{text} ({one.name})" for text, one in _VERSIONS.items())),
}


def _check_tls(options: Mapping[str, Any], shown: str) -> None:
    """Raise `ImproperlyConfigured`, naming the option and the fix, for options that no connection could use."""

    def wrong(name: str, fix: str) -> ImproperlyConfigured:
        return ImproperlyConfigured(f"LOCATION {shown!r} has {name}={str(options[name])!r}{fix}.")

    for name, kind in (("keyfile", "file"), ("certfile", "file"), ("ca_certs", "file"), ("ca_path", "directory")):
        path = options.get(f"ssl_{name}")
        if path is not None and not (os.path.isdir if kind == "directory" else os.path.isfile)(path):
            raise wrong(f"ssl_{name}", f", which is no {kind} here; give the path of one")
    for name, (choices, fix) in _TLS_CHOICES.items():
        if options.get(name) is not None and options[name] not in choices:
            raise wrong(name, f"; give {fix}")
    if ciphers := options.get("ssl_ciphers"):
        try:
            ssl.create_default_context().set_ciphers(ciphers)
        except ssl.SSLError:
            raise wrong("ssl_ciphers", "; give a list that OpenSSL knows") from None


# cache:ALIAS. Only the address and the login are taken from the cache, not its pool, time-outs, serializer or prefix.

_CACHES = ("django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache")


def _cache_address(alias: str) -> tuple[str, dict[str, Any]]:
    """Return the URL of the server to which the cache `alias` writes, and the options for logging in.

    Raises `ImproperlyConfigured`, naming the value and the fix, for a cache that is no single Redis server.
    """
    caches: Mapping[str, Mapping[str, Any]] = settings.CACHES
    where = f'LOCATION "cache:{alias}"'
    if alias not in caches:
        raise ImproperlyConfigured(f"{where}: CACHES has no {alias!r}; it has: {', '.join(sorted(caches)) or 'none'}.")
    cache = caches[alias]
    if not _is_redis_cache(cache.get("BACKEND")):
        raise ImproperlyConfigured(
            f"{where}: CACHES[{alias!r}] is a {cache.get('BACKEND')!r}; name a Redis cache ({' or '.join(_CACHES)}), "
            f"or give the server's URL."
        )
    options: Mapping[str, Any] = cache.get("OPTIONS", {})
    # django-redis has the login in capitals, and the rest in CONNECTION_POOL_KWARGS. Django has everything in OPTIONS.
    flat = {**options, **options.get("CONNECTION_POOL_KWARGS", {})}
    for name in _USER:
        if flat.get(name.upper()):
            flat.setdefault(name, flat[name.upper()])
    taken = {name for name in flat if name.startswith("ssl_") or name in (*_LOGIN, "credential_provider")}
    servers = cache.get("LOCATION", "")
    if isinstance(servers, str):
        servers = servers.replace(";", ",").split(",")
    first = servers[0].strip() if servers else ""  # both caches write to the first server; the others are replicas
    login = {name: flat[name] for name in taken if flat[name] is not None}
    if "ssl_cert_reqs" in taken and "ssl_cert_reqs" not in login:
        login["ssl_cert_reqs"] = "none"  # to redis-py None means that no certificate is checked
    if "SENTINELS" not in options:
        return first, login
    own = {f"sentinel_{name}": value for name, value in options.get("SENTINEL_KWARGS", {}).items() if name in _USER}
    return _sentinel_url(where, first, options["SENTINELS"]), {**login, **own}


def _is_redis_cache(backend: object) -> bool:
    """Return whether a BACKEND is one of the Redis caches, or a subclass of one."""
    if backend in _CACHES:
        return True
    try:
        found = import_string(backend) if isinstance(backend, str) else None
    except ImportError:
        return False
    return any(f"{each.__module__}.{each.__qualname__}" in _CACHES for each in getattr(found, "__mro__", ()))


def _sentinel_url(where: str, address: str, sentinels: object) -> str:
    """Return the URL of a primary behind sentinels from django-redis's settings: the host of LOCATION is its name."""
    try:
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in sentinels)  # type: ignore[attr-defined]  # whatever the site wrote
        scheme, rest = address.split("://", 1)
        login, _at, place = rest.partition("?")[0].rpartition("@")
        name, _slash, db = place.partition("/")
    except (TypeError, ValueError):
        hosts = name = ""
    if not (hosts and name):
        raise ImproperlyConfigured(
            f"{where} has SENTINELS; give them as a list of (host, port), and the primary's name as the host of its "
            "LOCATION."
        )
    return f"{scheme}+sentinel://{login}{_at}{hosts}/{name.partition(':')[0]}{f'/{db}' if db else ''}"


# LOCATION as a dict.

_NETWORK = ("db", *_USER, "tls")
_DICTS: Mapping[str, Sequence[str]] = {
    "host": ("port", *_NETWORK),
    "socket": _LOGIN,
    "cluster": (*_USER, "tls"),
    "sentinels": ("name", *_SENTINEL_LOGIN, *_NETWORK),
    "cache": (),
    "embedded": (),
}
"""The name that each kind of dict must have, and the names that it may have in addition."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("host", "cache", "name", *_USER, *_SENTINEL_LOGIN), (str,)),
    **dict.fromkeys(("socket", "embedded"), (str, os.PathLike)),
    **dict.fromkeys(("port", "db"), (int,)),
    **dict.fromkeys(("sentinels", "cluster"), (list, tuple)),
    "tls": (bool, Mapping),
}


@sensitive_variables()
def url_of(location: object) -> str:
    """Return LOCATION, given as text or as a dict, as a URL.

    Raises `ImproperlyConfigured`, naming the setting and the fix, but no value that may be a secret.
    """
    if isinstance(location, Mapping):
        return _url_of_dict(location)
    if not isinstance(location, str) or not location:
        wrong = "empty" if location == "" else f"{type(location).__name__}, not text or a dict"
        raise ImproperlyConfigured(f"LOCATION is {wrong}; {_FORMS}.")
    return location


@sensitive_variables()
def _url_of_dict(location: Mapping[Any, Any]) -> str:
    kinds = [kind for kind in _DICTS if kind in location]
    if len(kinds) != 1:
        has, names = " and ".join(f'"{kind}"' for kind in kinds), ", ".join(f'"{kind}"' for kind in _DICTS)
        raise ImproperlyConfigured(f"LOCATION is a dict with {has or 'no address'}; give it one of {names}.")
    (kind,) = kinds
    given = checked("LOCATION", location, {name: _TYPES[name] for name in (kind, *_DICTS[kind])}, _TLS)
    tls = given.get("tls") or {}
    options = {name: given[name] for name in _SENTINEL_LOGIN if name in given}
    if isinstance(tls, Mapping):
        options |= {f"ssl_{name}": value for name, value in checked('LOCATION["tls"]', tls, _TLS).items()}
    scheme = "redis" if given.get("tls", False) is False else "rediss"
    username, password = (quote(given.get(name, ""), safe="") for name in _USER)
    login = f"{username}:{password}@" if username or password else ""
    db = f"/{given['db']}" if "db" in given else ""
    if kind == "host":
        host = f"[{given[kind]}]" if given[kind].count(":") > 1 and given[kind][0] != "[" else given[kind]
        address = [f"{host}:{given['port']}" if "port" in given else host]
        return f"{scheme}://{login}{_hosts(kind, address)}{db}{_query(options)}"
    if kind == "cluster":
        return f"{scheme}+cluster://{login}{_hosts(kind, given[kind])}{_query(options)}"
    if kind == "sentinels":
        if not given.get("name"):
            raise ImproperlyConfigured(
                'LOCATION has no "name": give the one under which the sentinels watch the primary.'
            )
        name = quote(given["name"], safe="")
        return f"{scheme}+sentinel://{login}{_hosts(kind, given[kind])}/{name}{db or '/0'}{_query(options)}"
    if kind == "socket":
        return f"unix://{login}{quote(os.fspath(given[kind]))}{_query({'db': given['db']} if db else {})}"
    return f"{'cache:' if kind == 'cache' else 'embedded://'}{os.fspath(given[kind])}"


def _hosts(name: str, hosts: Sequence[Any]) -> str:
    if not hosts or not all(isinstance(host, str) and host for host in hosts):
        raise no_hosts(name)
    if any(mark in host for host in hosts for mark in "@/?,#"):
        raise ImproperlyConfigured(f'LOCATION["{name}"] has more than "HOST:PORT" in it; a login has its own names.')
    return ",".join(hosts)


@sensitive_variables()
def _query(options: Mapping[str, Any]) -> str:
    return f"?{urlencode(options, quote_via=quote)}" if options else ""
