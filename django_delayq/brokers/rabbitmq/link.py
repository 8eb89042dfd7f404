"""Share one connection to RabbitMQ between threads, turn its errors into ours, and sleep on its socket.

A connection of py-amqp may be used by only one thread at a time, and needs no thread of its own, so a lock is enough.
"""

import contextlib
import math
import os
import re
import select
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

import amqp
from amqp import exceptions

from django_delayq.brokers.rabbitmq.locations import TIMEOUT_S, Location
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable
from django_delayq.support.translatable import text as _

STALE_S = 60.0
"""A connection without heartbeats that was idle for this long is replaced, because it may be dead unnoticed."""

PART_S = 0.001
"""How long to wait for the rest of a frame that has come in part. If it does not come, the next `drain` reads it."""

DRAIN_S = 0.5
"""The longest time for which `drain` reads. Somebody may publish without end, and a worker must do more than read."""

FAULTS = (OSError, exceptions.AMQPError, AttributeError)
"""The errors that py-amqp raises; AttributeError if a connection is closed while it is used."""


class Link:
    """A connection that is opened when it is needed, and again after it broke."""

    def __init__(self, location: Location, prefix: str, heartbeat: int = 0) -> None:
        self.lock = threading.RLock()
        self.location = location
        self._prefix = prefix
        self.blocked = False
        """Whether the server has said that it takes no messages, because its memory or disk alarm is on."""
        self._heartbeat = heartbeat
        self.connection: amqp.Connection | None = None
        self._used_at = 0.0

    @contextmanager
    def using(self, timeout: float = TIMEOUT_S) -> Iterator[amqp.Connection]:
        """Yield the connection, which no other thread can use during the block.

        An error of py-amqp in the block closes the connection, and is raised as our error. Waits at most `timeout`
        seconds for other threads, and as long again to connect. Raises at once if the server has blocked the
        connection, because the server reads nothing from it. Such a connection is kept: the server would not notice its
        end, and a new one would cost memory, which the server is short of.
        """
        if not self.lock.acquire(timeout=max(timeout, 0)):
            raise BrokerUnavailable(f"RabbitMQ at {self.location.shown} keeps other threads waiting.")
        try:
            connection = self._connected(timeout)
            self._hear_unblocked()
            self.raise_if_blocked()
            yield connection
            self._used_at = monotonic()
        except FAULTS as error:
            ours = _takes_nothing(self.location) if self.blocked else as_ours(error, self.location, self._prefix)
            self.drop()
            raise ours from None
        finally:
            self.lock.release()

    def refusal(self) -> str:
        """Return why the server takes no messages; "" if it takes them, as far as is known. Never waits."""
        if self.blocked and self.lock.acquire(blocking=False):
            try:
                self._hear_unblocked()
            except FAULTS:
                self.drop()
            finally:
                self.lock.release()
        return str(_takes_nothing(self.location)) if self.blocked else ""

    def raise_if_blocked(self) -> None:
        """Raise `BrokerUnavailable` if the server, as far as is known, takes no messages."""
        if self.blocked:
            raise _takes_nothing(self.location)

    def _hear_unblocked(self) -> None:
        if self.blocked and self.connection is not None:
            drain(self.connection)

    def drop(self) -> None:
        """Close the connection without telling the server."""
        with self.lock:
            connection, self.connection, self.blocked = self.connection, None, False
            if connection is not None:
                with contextlib.suppress(*FAULTS):
                    connection.collect()

    def close(self) -> None:
        """Close the connection, and tell the server."""
        with self.lock:
            if self.connection is not None:
                with contextlib.suppress(*FAULTS):
                    self.connection.close()
            self.drop()

    def _connected(self, timeout: float) -> amqp.Connection:
        stale = not self._heartbeat and not self.blocked and monotonic() - self._used_at > STALE_S
        if self.connection is not None and (stale or not self.connection.connected):
            self.drop()
        if self.connection is None:
            self.connection = self.location.connect(timeout, self._heartbeat)
            self._used_at = monotonic()
            self.connection.on_blocked = self._on_blocked
            self.connection.on_unblocked = self._on_unblocked
        return self.connection

    def _on_blocked(self, reason: str) -> None:
        self.blocked = True

    def _on_unblocked(self) -> None:
        self.blocked = False


def drain(connection: amqp.Connection) -> None:
    """Handle what the server has sent, without waiting for more, for at most `DRAIN_S`. The next call goes on."""
    until = monotonic() + DRAIN_S
    with contextlib.suppress(TimeoutError):
        while monotonic() < until and _readable(connection.sock):
            connection.drain_events(timeout=PART_S)


def _readable(sock: socket.socket) -> bool:
    """Return whether something can be read at once. TLS may hold data that can't be seen at the socket."""
    if isinstance(sock, ssl.SSLSocket) and sock.pending():
        return True
    return bool(await_readable([sock], 0))


def await_readable(files: Sequence[int | socket.socket], timeout_s: float) -> set[int]:
    """Wait up to `timeout_s` until any of the files can be read or has broken. Return their descriptors.

    It does not use `select.select`, which takes no descriptor over 1,023.
    """
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(math.ceil(timeout_s * 1000))}


def _takes_nothing(location: Location) -> BrokerUnavailable:
    return BrokerUnavailable(
        _(
            "%(server)s takes no messages: its memory or disk alarm is on. See `rabbitmq-diagnostics alarms`; "
            "give the node more, or let workers empty its queues.",
            server=_at(location),
        )
    )


def _at(location: Location) -> str:
    return _("%(server)s at %(address)s", server="RabbitMQ", address=location.shown)


def as_ours(error: Exception, location: Location, prefix: str) -> Exception:
    """Return our error for an error of py-amqp or of the network, with a remedy where one is known."""
    at = _at(location)
    said = (getattr(error, "reply_text", "") or str(error) or type(error).__name__).rstrip(".")
    said = re.sub(r"(?<=[.]news[.])[\w-]+", "…", said)  # hides a random name, which would make each error look new
    if isinstance(error, ssl.SSLCertVerificationError):
        return BrokerRefused(
            _(
                "%(server)s shows a certificate that is not trusted: %(said)s; name its authority in LOCATION "
                "(?ssl_ca_certs=FILE), and the host as the certificate does.",
                server=at,
                said=said,
            )
        )
    if isinstance(error, exceptions.AccessRefused | exceptions.NotAllowed):
        return BrokerRefused(
            _("%(server)s refused: %(said)s.", server=at, said=f"{said}; {_remedy(said, location, prefix)}")
        )
    if isinstance(error, exceptions.PreconditionFailed) and "inequivalent" in said:
        remedy = "delete it, or give a prefix of your own (OPTIONS)"
        return BrokerRefused(f"{at} has something of that name with other arguments: {said}; {remedy}.")
    if isinstance(error, exceptions.NotFound):
        return BrokerUnavailable(
            _("%(server)s: something was deleted, and is made again: %(said)s.", server=at, said=said)
        )
    if isinstance(error, ssl.SSLError):
        said += "; if its port speaks no TLS, write amqp://, or the port that does (5671)"
    return BrokerUnavailable(_("%(server)s is away: %(said)s", server=at, said=f"{said}."))


def _remedy(said: str, location: Location, prefix: str) -> str:
    if "Login was refused" in said:
        return f"check the user {location.user!r} and the password in LOCATION"
    if "access to vhost" in said or "not found" in said:
        return (
            f"create the vhost {location.vhost!r} (rabbitmqctl add_vhost), give {location.user!r} permissions in it,"
            " or mend LOCATION"
        )
    names = f"'^{re.escape(prefix)}[.]'"
    return (
        f"give {location.user!r} configure, write and read on {names}:"
        f" rabbitmqctl set_permissions -p {location.vhost} {location.user} {names} {names} {names}"
    )


class Waker:
    """A pipe that wakes a thread that sleeps on a socket.

    If no thread sleeps when `wake` is called, the next sleep ends at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writer: int | None = None
        self._woken = False

    @contextmanager
    def listening(self) -> Iterator[int]:
        """Yield a descriptor to sleep on: it becomes readable when `wake` is called.

        If `wake` was called after the last sleep, it is readable at once.
        """
        reader, writer = os.pipe()
        with self._lock:
            self._writer = writer
            if self._woken:
                os.write(writer, b"\0")
        try:
            yield reader
        finally:
            with self._lock:
                self._writer, self._woken = None, False
            os.close(reader)
            os.close(writer)

    def wake(self) -> None:
        """End the running or the next sleep."""
        with self._lock:
            if self._writer is not None and not self._woken:
                os.write(self._writer, b"\0")
            self._woken = True
