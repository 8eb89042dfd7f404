"""Connections that redis-py lacks: over a unix socket with a large send buffer, and to the primary behind sentinels.

The sentinels are asked at each connect where the primary is now, so that a failover needs nobody's help.
"""

import asyncio
import re
import socket
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio.connection import Connection as AsyncConnection, SSLConnection as AsyncSSLConnection
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import AuthenticationError, ConnectionError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

SEND_BUFFER = 1024 * 1024
"""The size in bytes; the system grants less where its limit is lower.

Its default, about 200 KiB, is less than a thousand messages may take: the sender would wait while the server works,
and the server while the sender prepares the next ones. TCP grows its buffers by itself.
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
        """Return the host and port of the primary, as the first sentinel that answers knows it.

        `timeout` is in seconds, for all sentinels. Raises redis-py's `ConnectionError` where none knows of a living
        primary.
        """
        each = None if timeout is None else timeout / len(self.addresses)
        common = {"protocol": 2, "retry": Retry(NoBackoff(), 0), "socket_timeout": each, "socket_connect_timeout": each}
        asked = Sentinel(self.addresses, sentinel_kwargs={**self.options, **common})
        try:
            host, port = asked.discover_master(self.name)
        except MasterNotFoundError as error:  # its text holds how they were asked, logins too
            if re.search("WRONGPASS|NOAUTH|invalid password|Authentication", str(error)):
                raise AuthenticationError("a sentinel's login: sentinel_username, sentinel_password") from None
            raise ConnectionError(f"no sentinel answers that knows a living primary named {self.name!r}") from None
        finally:
            for sentinel in asked.sentinels:
                sentinel.close()
        return str(host), int(port)


class PrimaryConnection(Connection):
    """A connection to the primary."""

    def __init__(self, sentinels: Sentinels, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._sentinels = sentinels

    def _connect(self) -> Any:
        self.host, self.port = self._sentinels.primary(self.socket_connect_timeout)
        return super()._connect()  # type: ignore[no-untyped-call]


class TLSPrimaryConnection(SSLConnection, PrimaryConnection):
    """A connection to the primary over TLS."""


class AsyncPrimaryConnection(AsyncConnection):
    """A connection to the primary for an event loop, which asking the sentinels does not block."""

    def __init__(self, sentinels: Sentinels, **options: Any) -> None:
        super().__init__(**options)
        self._sentinels = sentinels

    async def _connect(self) -> None:
        self.host, self.port = await asyncio.to_thread(self._sentinels.primary, self.socket_connect_timeout)
        await super()._connect()  # type: ignore[no-untyped-call]


class AsyncTLSPrimaryConnection(AsyncSSLConnection, AsyncPrimaryConnection):
    """A connection to the primary over TLS, for an event loop."""
