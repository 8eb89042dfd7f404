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
class Hello:
    """What a child must know of its worker: its name and alias, the level of its log, and how much a child may take."""

    worker: str
    using: str
    level: int
    max_memory: int | None


@dataclass(slots=True)
class Handed:
    """A message to run, and what to add to the monotonic milliseconds to have the broker's time."""

    claimed: Claimed
    clock_ms: float


@dataclass(slots=True)
class Told:
    """What a worker tells its child: until when it holds all that the child has, and more to run, in this order.

    `held_until` is a time of the machine's one monotonic clock. The child rings when it has nothing left, and before
    that when `ring_at` have not started. `give_back`: what has not started is wanted back.
    """

    held_until: float
    batch: list[Handed] = field(default_factory=list)
    ring_at: int = 0
    give_back: bool = False


@dataclass(slots=True)
class Answer:
    """What a child says: how the first of what it has ended, and from when until when that ran; and, by their ids, what
    it gives back without having started it.

    `resident` is how many bytes it takes, 0 where it has not looked. The first answer says that it is ready.
    """

    transition: Transition | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    unstarted: list[str] = field(default_factory=list)
    resident: int = 0


def is_readable(connection: socket.socket, within_s: float | None) -> bool:
    """Whether there is something to read, or nobody any more, within so long; None waits without end."""
    return _is_ready(connection, select.POLLIN, within_s)


def is_writable(connection: socket.socket) -> bool:
    """Whether the other side has read what it was sent, but for a part."""
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
    """The next value, waited for. Raises `EOFError` or `OSError` when the other side is gone."""
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    value: T = codec.decode_data(_receive_exactly(connection, length), kind)
    return value


class Inbox:
    """Answers as they lie in the system's buffer, where they outlive the process that gave them."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._decode = codec.decoder_for(Answer).decode
        self._received = bytearray()

    def read(self) -> list[Answer]:
        """What is there by now; never waits. Raises `ValueError` for what is no answer."""
        received = self._received
        try:
            while part := self._connection.recv(_PART):
                received += part
                if len(part) < _PART:
                    break
        except OSError:  # nothing is there, or nobody any more
            pass
        return self._take()

    def _take(self) -> list[Answer]:
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
