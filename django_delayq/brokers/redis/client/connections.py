"""Make connections for a parsed LOCATION, and define the kinds of connections that redis-py lacks.

These have a large send buffer on a unix socket, or go to the primary behind sentinels. The sentinels are asked at each
connect where the primary is, so that connections follow a failover by themselves. redis-py's retries are off, because a
claim that it repeats silently would lose messages; the client repeats calls itself. RESP2 is requested, because with
RESP3 a server may send messages that nobody has asked for.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from redis.asyncio.connection import (
    AbstractConnection as AnyAsyncConnection,
    Connection as AsyncConnection,
    SSLConnection as AsyncSSLConnection,
)
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import AuthenticationError, ConnectionError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

Address = tuple[str, int]

PORT = 6379

TIMEOUT_S = 2.0
"""How long to wait for the server to connect, and for each reply, unless the caller passes another time."""

SEND_BUFFER = 1024 * 1024
"""The size of a unix socket's send buffer in bytes; the system may grant less.

The default, about 200 KiB, is less than a thousand messages may take: the sender would wait while the server works, and
the server while the sender prepares the next messages. TCP enlarges its buffers by itself.
"""


class UnixConnection(UnixDomainSocketConnection):
    """A connection over the unix socket `path`, whose buffer takes a whole bulk send at once."""

    def _connect(self) -> Any:
        connected = super()._connect()  # type: ignore[no-untyped-call]
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return connected


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

    def connection(self, timeout: float = TIMEOUT_S) -> AbstractConnection:
        """Return a connection that connects at its first command. `timeout` is in seconds."""
        return self.make(**self.options, **_common(timeout), retry=Retry(NoBackoff(), 0))

    def async_connection(self, timeout: float = TIMEOUT_S) -> AnyAsyncConnection:
        """Return a connection like `connection`, for the running event loop."""
        return self.make_async(**self.options, **_common(timeout), retry=AsyncRetry(NoBackoff(), 0))


def _common(timeout: float) -> dict[str, Any]:
    times = {"socket_connect_timeout": timeout, "socket_timeout": timeout}
    return {**times, "client_name": "delayq", "protocol": 2, "retry_on_timeout": False, "health_check_interval": 0}
