"""LOCATION: where the Redis server is and how to log in. The one place that makes connections and hides passwords.

redis-py repeats commands by itself, and a repeated claim would lose messages: its retries are off here, and the broker
does the repeating. RESP2 is requested, so that nothing unasked comes over a connection.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.views.decorators.debug import sensitive_variables
from redis import asyncio as aredis
from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.retry import Retry

from django_delayq.brokers.redis.client.caches import cache_address
from django_delayq.brokers.redis.client.dicts import url_of
from django_delayq.brokers.redis.client.sentinel import (
    PORT as SENTINEL_PORT,
    AsyncPrimaryConnection,
    AsyncTLSPrimaryConnection,
    PrimaryConnection,
    Sentinels,
    TLSPrimaryConnection,
)
from django_delayq.brokers.redis.client.tls import check_tls
from django_delayq.brokers.redis.client.unix_connection import UnixConnection
from django_delayq.support.redaction import hidden
from django_delayq.support.texts import text as _

Address = tuple[str, int]

PORT = 6379

TIMEOUT_S = 2.0
"""How long a connection waits for the server, at its start and for each reply, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Location:
    """One parsed LOCATION. `shown` is fit for every eye; `warnings` are for the start of a worker.

    `nodes` are some nodes of a cluster. Then nothing connects to this location itself, but to those that `at` returns.
    """

    shown: str
    options: Mapping[str, Any] = field(repr=False)
    make: Callable[..., AbstractConnection] = Connection
    make_async: Callable[..., AsyncConnection] = aredis.Connection
    warnings: tuple[str, ...] = ()
    nodes: tuple[Address, ...] = ()

    @property
    def servers(self) -> frozenset[str]:
        """Return names of the servers that it leads to: two locations with one in common lead to the same keys."""
        db, options = self.options.get("db", 0), self.options
        if self.nodes:
            return frozenset(f"{host}:{port}" for host, port in self.nodes)
        if sentinels := options.get("sentinels"):
            return frozenset(f"{host}:{port}/{sentinels.name}/{db}" for host, port in sentinels.addresses)
        if path := options.get("directory") or options.get("path"):
            return frozenset({f"{path}/{db}"})
        return frozenset({f"{options.get('host', 'localhost')}:{options.get('port', PORT)}/{db}"})

    def at(self, node: Address) -> "Location":
        """Return the location of one node of the cluster."""
        host, port = node
        return replace(self, shown=f"{host}:{port}", options={**self.options, "host": host, "port": port}, nodes=())

    def connection(self, timeout: float = TIMEOUT_S) -> AbstractConnection:
        """Return a connection that connects at its first command. `timeout` in seconds."""
        return self.make(**self.options, **_common(timeout), retry=Retry(NoBackoff(), 0))

    def async_connection(self, timeout: float = TIMEOUT_S) -> AsyncConnection:
        """Return a connection like `connection`, for the running event loop."""
        return self.make_async(**self.options, **_common(timeout), retry=AsyncRetry(NoBackoff(), 0))


def _common(timeout: float) -> dict[str, Any]:
    return {
        "client_name": "delayq",
        "protocol": 2,
        "socket_connect_timeout": timeout,
        "socket_timeout": timeout,
        "retry_on_timeout": False,
        "health_check_interval": 0,
    }


@sensitive_variables()
def parse_location(location: object) -> Location:
    """Parse LOCATION, without connecting or starting anything.

    Raises `ImproperlyConfigured` with the value and the fix.
    """
    if isinstance(location, Mapping):
        location = url_of(location)
    if not isinstance(location, str) or not location:
        wrong = "empty" if location == "" else f"{type(location).__name__}, not text"
        raise ImproperlyConfigured(f"LOCATION is {wrong}; {_FORMS}.")
    if location.startswith("cache:"):
        return _parse_cache(location)
    if location.startswith("embedded://"):
        return _parse_embedded(location)
    scheme, _, _ = location.partition("//")
    if scheme.endswith("+sentinel:"):
        return _parse_sentinel(location, hide_password(location))
    if scheme.endswith("+cluster:"):
        return _parse_cluster(location, hide_password(location))
    return _parse_url(location, hide_password(location), {})


_FORMS = (
    "write redis://HOST:PORT/DB, rediss://…, unix:///PATH?db=N, redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB, "
    "redis+cluster://HOST:PORT,HOST:PORT, cache:ALIAS or embedded://[DIRECTORY]"
)


def hide_password(location: str) -> str:
    """Return `location` with its secrets as `***`, even if it is badly written. All that is shown goes through here."""
    if location.startswith(("cache:", "embedded:")):
        return location
    return hidden(location, _HARMLESS_OPTIONS)


def embedded_directory(location: str) -> Path:
    """Return the absolute directory of an `embedded://` LOCATION. Raises `ImproperlyConfigured`."""
    directory = Path(location.removeprefix("embedded://") or "var/delayq")
    base = getattr(settings, "BASE_DIR", None)
    if base is None and not directory.is_absolute():
        raise ImproperlyConfigured(
            f"LOCATION {location!r} is relative to BASE_DIR, which the settings don't have: "
            f"set BASE_DIR, or write embedded:///ABSOLUTE/DIRECTORY."
        )
    return Path(base or "/", directory).resolve()


def _parse_embedded(location: str) -> Location:
    # Here and not above: it needs fcntl, which Windows lacks, and other locations work there.
    from django_delayq.brokers.redis.client.embedded_connection import AsyncEmbeddedConnection, EmbeddedConnection

    directory = embedded_directory(location)
    options = {"directory": directory}
    return Location(f"embedded://{directory}", options, EmbeddedConnection, AsyncEmbeddedConnection)


def _parse_cache(location: str) -> Location:
    url, options = cache_address(location.removeprefix("cache:"))
    warning = _(
        "%(location)s: cache.clear() empties the database and so removes all messages; give them one of their own.",
        location=location,
    )
    return replace(_parse_url(url, f"{location} ({hide_password(url)})", options), warnings=(warning,))


def _parse_sentinel(location: str, shown: str) -> Location:
    found = re.fullmatch(r"(rediss?)\+sentinel://(.*@)?([^@/?]+)/([^@/?]+)(/\d*)?(?:\?(.*))?", location)
    if found is None:
        raise ImproperlyConfigured(_unreadable(shown))
    scheme, login, hosts, name, db, query = found.groups(default="")
    options = query.split("&")
    own = [option for option in options if option.startswith("sentinel_")]
    rest = "&".join(option for option in options if option not in own)
    primary = _parse_url(f"{scheme}://{login}sentinel{db}?{rest}", shown, {})
    tls = {key: value for key, value in primary.options.items() if key.startswith("ssl_")}
    if primary.make is SSLConnection:
        tls["ssl"] = True
    asked = Sentinels(_addresses(hosts, SENTINEL_PORT, shown), unquote(name), {**tls, **_sentinel_login(own, shown)})
    make, make_async = _BY_SENTINEL[primary.make]
    to_primary = {**primary.options, "sentinels": asked}
    return Location(shown, to_primary, make, make_async)


def _parse_cluster(location: str, shown: str) -> Location:
    found = re.fullmatch(r"(rediss?)\+cluster://(.*@)?([^@/?]+)/?(?:\?(.*))?", location)
    if found is None:
        raise ImproperlyConfigured(_unreadable(shown))
    scheme, login, hosts, query = found.groups(default="")
    node = _parse_url(f"{scheme}://{login}cluster?{query}", shown, {})
    if "db" in node.options:
        raise ImproperlyConfigured(f"LOCATION {shown!r} names a database; a cluster has only one: leave db out.")
    options = {name: value for name, value in node.options.items() if name != "host"}
    return replace(node, options=options, nodes=_addresses(hosts, PORT, shown))


def _addresses(hosts: str, port: int, shown: str) -> tuple[Address, ...]:
    try:
        each = [urlsplit(f"//{host}") for host in hosts.split(",")]
        addresses = tuple((one.hostname or "", one.port or port) for one in each)
    except ValueError:  # a port that is none
        addresses = (("", 0),)
    if not all(host for host, _ in addresses):
        raise ImproperlyConfigured(_unreadable(shown))
    return addresses


def _sentinel_login(options: list[str], shown: str) -> dict[str, str]:
    login = {}
    for name, values in parse_qs("&".join(options), keep_blank_values=True).items():
        if name not in _SENTINEL_OPTIONS:
            raise ImproperlyConfigured(
                f"LOCATION {shown!r} has the unknown option {name!r}; "
                f"for the sentinels it takes {', '.join(sorted(_SENTINEL_OPTIONS))}."
            )
        login[name.removeprefix("sentinel_")] = values[-1]
    return login


def _parse_url(url: str, shown: str, login: Mapping[str, Any]) -> Location:
    try:
        options = {**login, **parse_url(url)}
        parts = urlsplit(url)
    except ValueError:  # its text may hold the password
        raise ImproperlyConfigured(_unreadable(shown)) from None
    if parts.scheme != "unix" and "@" in parts.path + parts.query + parts.fragment:
        raise ImproperlyConfigured(_unreadable(shown))
    _check_address(parts, shown)
    _check_options(parts, options, shown)
    connection = options.pop("connection_class", Connection)
    if connection is SSLConnection:
        check_tls(options, shown)
    else:
        options = {name: value for name, value in options.items() if not name.startswith("ssl_")}
    return Location(shown, options, *_DIRECT[connection])


def _unreadable(shown: str) -> str:
    return f"LOCATION {shown!r} can't be read; {_FORMS}, with special characters of a password percent-encoded."


_Connections = tuple[Callable[..., AbstractConnection], Callable[..., AsyncConnection]]
_BY_SENTINEL: Mapping[Callable[..., AbstractConnection], _Connections] = {
    Connection: (PrimaryConnection, AsyncPrimaryConnection),
    SSLConnection: (TLSPrimaryConnection, AsyncTLSPrimaryConnection),
}
_DIRECT: Mapping[Callable[..., AbstractConnection], _Connections] = {
    Connection: (Connection, aredis.Connection),
    SSLConnection: (SSLConnection, aredis.SSLConnection),
    UnixDomainSocketConnection: (UnixConnection, aredis.UnixDomainSocketConnection),
}


def _check_address(parts: SplitResult, shown: str) -> None:
    if parts.scheme == "unix":
        if parts.hostname or not parts.path:
            raise ImproperlyConfigured(f"LOCATION {shown!r} names no socket; write unix:///PATH, with three slashes.")
    elif not re.fullmatch(r"/?\d*", parts.path):
        raise ImproperlyConfigured(f"LOCATION {shown!r} must end in the number of a database, as in {_EXAMPLE}.")


def _check_options(parts: SplitResult, options: Mapping[str, Any], shown: str) -> None:
    if any(option and "=" not in option for option in parts.query.split("&")):
        raise ImproperlyConfigured(_unreadable(shown))  # perhaps the rest of a password
    known = _LOGIN_OPTIONS | (_TLS_OPTIONS if parts.scheme == "rediss" else frozenset())
    for name in parse_qs(parts.query, keep_blank_values=True):
        if name not in known:
            raise ImproperlyConfigured(
                f"LOCATION {shown!r} has the unknown option {name!r}; it takes {', '.join(sorted(known))}."
            )
    if options.get("db", 0) < 0:
        raise ImproperlyConfigured(f"LOCATION {shown!r} has the database {options['db']}; give 0 or more.")


_EXAMPLE = "redis://127.0.0.1:6379/0"
_LOGIN_OPTIONS = frozenset({"db", "username", "password"})
_TLS_OPTIONS = frozenset(
    {
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_password",
        "ssl_cert_reqs",
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_check_hostname",
        "ssl_min_version",
        "ssl_ciphers",
    }
)
_SENTINEL_OPTIONS = frozenset({"sentinel_username", "sentinel_password"})
_HARMLESS_OPTIONS = (_LOGIN_OPTIONS | _TLS_OPTIONS | {"sentinel_username"}) - {"password", "ssl_password"}
