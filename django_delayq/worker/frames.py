"""Frames between a worker and its child processes: a length, then JSON. Nothing is pickled."""

import socket
import struct
from typing import Any

from django_delayq import codec

_LENGTH = struct.Struct("!I")


def send(connection: socket.socket, value: object) -> None:
    """Send one value. Raises `OSError` when the other side is gone."""
    body = codec.dumps(value)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket) -> Any:
    """The next value. Raises `EOFError` or `OSError` when the other side is gone."""
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    return codec.loads(_receive_exactly(connection, length))


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise EOFError("the other side is gone")
        received += part
    return bytes(received)
