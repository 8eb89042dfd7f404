"""Frames between a worker and its child processes: a length, then JSON of one of these values. Nothing is pickled."""

import select
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django_delayq.brokers.base import Claimed, Transition
from django_delayq.core import codec

T = TypeVar("T")

_LENGTH = struct.Struct("!I")
_PART = 1 << 16


@dataclass(slots=True)
class Handshake:
    """The first frame to a child: its worker's name and alias, the level of its log, and how much memory it may use."""

    worker: str
    using: str
    level: int
    max_memory: int | None


@dataclass(slots=True)
class Job:
    """A message to run, and the number to add to monotonic milliseconds to get the broker's time."""

    claimed: Claimed
    clock_ms: float


@dataclass(slots=True)
class Assign:
    """An order to a child: until when its leases are held, and more messages to run, in this order.

    `held_until` is a time of the machine's one monotonic clock. The child rings when it has nothing left, and before
    that when `ring_at` messages have not started. With `give_back`, it is to give back those that have not started.
    """

    held_until: float
    batch: list[Job] = field(default_factory=list)
    ring_at: int = 0
    give_back: bool = False


@dataclass(slots=True)
class Report:
    """A child's answer: how the first of its messages ended, from when until when that ran, and the ids it gives back.

    It has not started the messages that it gives back. `resident` is how many bytes of memory it takes, 0 where it has
    not looked. The first answer says that it is ready.
    """

    transition: Transition | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    unstarted: list[str] = field(default_factory=list)
    resident: int = 0


def is_readable(connection: socket.socket, within_s: float | None) -> bool:
    """Return whether there is something to read, or the other side is gone, within `within_s` (None: without end)."""
    return _is_ready(connection, select.POLLIN, within_s)


def is_writable(connection: socket.socket) -> bool:
    """Return whether the other side has read what it was sent, except for a part."""
    return _is_ready(connection, select.POLLOUT, 0)


def _is_ready(connection: socket.socket, event: int, within_s: float | None) -> bool:
    poll = select.poll()  # `select.select` takes no descriptor over 1023, and a worker may have as many connections
    poll.register(connection, event)
    return bool(poll.poll(None if within_s is None else within_s * 1000))


def send(connection: socket.socket, value: object) -> None:
    """Send one value. Raises `OSError` when the other side is gone."""
    body = codec.dumps(value)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket, kind: type[T]) -> T:
    """Wait for the next value, and return it. Raises `EOFError` or `OSError` when the other side is gone."""
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    value: T = codec.decode_data(_receive_exactly(connection, length), kind)
    return value


class Inbox:
    """Answers as they lie in the system's buffer, where they outlive the process that gave them."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._decode = codec.decoder_for(Report).decode
        self._received = bytearray()

    def read(self) -> list[Report]:
        """Return the answers that have arrived; never waits. Raises `ValueError` for a frame that is no answer."""
        received = self._received
        try:
            while part := self._connection.recv(_PART):
                received += part
                if len(part) < _PART:
                    break
        except OSError:  # nothing is there, or nobody any more
            pass
        return self._take()

    def _take(self) -> list[Report]:
        answers: list[Any] = []
        start, received = 0, self._received
        while len(received) >= start + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received, start)
            end = start + _LENGTH.size + length
            if len(received) < end:
                break
            answers.append(self._decode(received[start + _LENGTH.size : end]))
            start = end
        del received[:start]
        return answers


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise EOFError("the other side is gone")
        received += part
    return bytes(received)
