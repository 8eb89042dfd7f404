"""Define a parsed LOCATION, and the connections to the primary behind sentinels, which redis-py has only in a pool.

The sentinels are asked at each connect where the primary is, so that connections follow a failover by themselves.
"""

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from redis.asyncio.connection import (
    AbstractConnection as AnyAsyncConnection,
    Connection as AsyncConnection,
    SSLConnection as AsyncSSLConnection,
)
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, SSLConnection
from redis.exceptions import AuthenticationError, ConnectionError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

Address = tuple[str, int]

PORT = 6379


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The addresses of the sentinels, the name under which they watch the primary, and how to log in to them."""

    addresses: tuple[tuple[str, int], ...]
    name: str
    options: dict[str, Any] = field(repr=False)

    def primary(self, timeout: float | None) -> tuple[str, int]:
        """Return the host and port of the primary, from the first sentinel that answers.

        `timeout` is in seconds, for all sentinels together. Raises redis-py's `ConnectionError` if no sentinel knows of
        a living primary.
        """
        each = None if timeout is None else timeout / len(self.addresses)
        common = {"protocol": 2, "retry": Retry(NoBackoff(), 0), "socket_timeout": each, "socket_connect_timeout": each}
        asked = Sentinel(self.addresses, sentinel_kwargs={**self.options, **common})
        try:
            host, port = asked.discover_master(self.name)
        except MasterNotFoundError as error:  # its text may contain passwords
            if re.search("WRONGPASS|NOAUTH|invalid password|Authentication", str(error)):
                raise AuthenticationError("a sentinel's login: sentinel_username, sentinel_password") from None
            raise ConnectionError(f"no sentinel answers that knows a living primary named {self.name!r}") from None
        finally:
            for sentinel in asked.sentinels:
                sentinel.close()
        return str(host), int(port)


class PrimaryConnection(Connection):
    """A connection to the primary behind sentinels."""

    def __init__(self, sentinels: Sentinels, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._sentinels = sentinels

    def _connect(self) -> Any:
        self.host, self.port = self._sentinels.primary(self.socket_connect_timeout)
        return super()._connect()  # type: ignore[no-untyped-call]


class TLSPrimaryConnection(SSLConnection, PrimaryConnection):
    """A connection to the primary behind sentinels, over TLS."""


class AsyncPrimaryConnection(AsyncConnection):
    """A connection to the primary behind sentinels, for an event loop. Asking the sentinels does not block the loop."""

    def __init__(self, sentinels: Sentinels, **options: Any) -> None:
        super().__init__(**options)
        self._sentinels = sentinels

    async def _connect(self) -> None:
        self.host, self.port = await asyncio.to_thread(self._sentinels.primary, self.socket_connect_timeout)
        await super()._connect()  # type: ignore[no-untyped-call]


class AsyncTLSPrimaryConnection(AsyncSSLConnection, AsyncPrimaryConnection):
    """A connection to the primary behind sentinels, over TLS, for an event loop."""


@dataclass(frozen=True, slots=True)
class Location:
    """One parsed LOCATION. `shown` is the address without secrets.

    `cache` is the LOCATION "cache:ALIAS" if the server is that of a cache, and otherwise "". `nodes` are some nodes of
    a cluster. If there are any, this is only a template: connect to the location that `at` returns for a node.
    """

    shown: str
    options: Mapping[str, Any] = field(repr=False)
    make: Callable[..., AbstractConnection] = Connection
    make_async: Callable[..., AnyAsyncConnection] = AsyncConnection
    cache: str = ""
    nodes: tuple[Address, ...] = ()

    @property
    def servers(self) -> frozenset[str]:
        """Return names for the servers of this location. Two locations with a name in common lead to the same keys."""
        db, options = self.options.get("db", 0), self.options
        if self.nodes:
            return frozenset(f"{host}:{port}" for host, port in self.nodes)
        if sentinels := options.get("sentinels"):
            return frozenset(f"{host}:{port}/{sentinels.name}/{db}" for host, port in sentinels.addresses)
        if path := options.get("directory") or options.get("path"):
            return frozenset({f"{path}/{db}"})
        return frozenset({f"{options.get('host', 'localhost')}:{options.get('port', PORT)}/{db}"})

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts that are named; none for a unix socket."""
        if self.nodes:
            return tuple(host for host, _ in self.nodes)
        if sentinels := self.options.get("sentinels"):
            return tuple(host for host, _ in sentinels.addresses)
        if "directory" in self.options or "path" in self.options:
            return ()
        return (self.options.get("host", "localhost"),)

    @property
    def is_encrypted(self) -> bool:
        """Return whether the connections use TLS."""
        return issubclass(self.make, SSLConnection)  # type: ignore[arg-type]

    @property
    def is_verified(self) -> bool:
        """Return whether the servers must prove over TLS who they are."""
        is_checked = self.options.get("ssl_cert_reqs", "required") not in ("none", ssl.CERT_NONE)
        return is_checked and self.options["ssl_check_hostname"] is True

    def at(self, node: Address) -> "Location":
        """Return the location of one node of the cluster."""
        host, port = node
        return replace(self, shown=f"{host}:{port}", options={**self.options, "host": host, "port": port}, nodes=())
