"""Connections over a unix socket that take a whole bulk send at once."""

import socket
from typing import Any

from redis.connection import UnixDomainSocketConnection

SEND_BUFFER = 1024 * 1024
"""The size in bytes; the system grants less where its limit is lower.

Its default, about 200 KiB, is less than a thousand messages may take: the sender would wait while the server works,
and the server while the sender prepares the next ones. TCP grows its buffers by itself.
"""


class UnixConnection(UnixDomainSocketConnection):
    """A connection to the server at `path`."""

    def _connect(self) -> Any:
        connected = super()._connect()  # type: ignore[no-untyped-call]
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return connected
