"""One connection to RabbitMQ, used by one thread at a time, and our errors for its faults.

py-amqp's connections may not be shared, and need no thread of their own, so a lock is enough.
"""

import contextlib
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import amqp
from amqp import exceptions

from django_delayq.brokers.rabbitmq.locations import TIMEOUT_S, Location
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable
from django_delayq.support.texts import text as _

STALE_S = 60.0
"""A connection without heartbeats that was idle for this long may be dead without notice: it is replaced."""

FAULTS = (OSError, exceptions.AMQPError, AttributeError)
"""The errors that py-amqp raises: AttributeError too, where a connection was closed under it."""


class Link:
    """A connection that is made when it is needed, and again after it broke."""

    def __init__(self, location: Location, prefix: str, heartbeat: int = 0) -> None:
        self.lock = threading.RLock()
        self.location = location
        self._prefix = prefix
        self.blocked = False
        """Whether the server takes no messages, because its memory or disk alarm is on."""
        self._heartbeat = heartbeat
        self.connection: amqp.Connection | None = None
        self._used_at = 0.0

    @contextmanager
    def using(self, timeout: float = TIMEOUT_S) -> Iterator[amqp.Connection]:
        """Yield the connection, for the block alone. A fault in the block ends it, and is raised as our error.

        Waits at most `timeout` seconds for other threads, and as long again for a connection.
        """
        if not self.lock.acquire(timeout=max(timeout, 0)):
            raise BrokerUnavailable(f"RabbitMQ at {self.location.shown} keeps other threads waiting.")
        try:
            yield self._connected(timeout)
            self._used_at = monotonic()
        except FAULTS as error:
            self.drop()
            raise as_ours(error, self.location, self._prefix, self.blocked) from None
        finally:
            self.lock.release()

    def drop(self) -> None:
        """End the connection without telling the server."""
        with self.lock:
            connection, self.connection = self.connection, None
            if connection is not None:
                with contextlib.suppress(*FAULTS):
                    connection.collect()

    def close(self) -> None:
        """End the connection in an orderly way."""
        with self.lock:
            if self.connection is not None:
                with contextlib.suppress(*FAULTS):
                    self.connection.close()
            self.drop()

    def _connected(self, timeout: float) -> amqp.Connection:
        stale = not self._heartbeat and monotonic() - self._used_at > STALE_S
        if self.connection is not None and (stale or not self.connection.connected):
            self.drop()
        if self.connection is None:
            self.blocked = False
            self.connection = self.location.connect(timeout, self._heartbeat)
            self._used_at = monotonic()
            self.connection.on_blocked = self._on_blocked
            self.connection.on_unblocked = self._on_unblocked
        return self.connection

    def _on_blocked(self, reason: str) -> None:
        self.blocked = True

    def _on_unblocked(self) -> None:
        self.blocked = False


def as_ours(error: Exception, location: Location, prefix: str, blocked: bool = False) -> Exception:
    """Return our error for one of py-amqp's."""
    at = _("%(server)s at %(address)s", server="RabbitMQ", address=location.shown)
    said = (getattr(error, "reply_text", "") or str(error) or type(error).__name__).rstrip(".")
    said = re.sub(r"(?<=[.]news[.])[\w-]+", "…", said)  # a random name: it would make each fault look new
    if blocked:
        return BrokerUnavailable(
            _(
                "%(server)s takes no messages: its memory or disk alarm is on. See `rabbitmq-diagnostics alarms`; "
                "give the node more, or let workers empty its queues.",
                server=at,
            )
        )
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
            _("%(server)s refused: %(said)s.", server=at, said=f"{said}; {_mend(said, location, prefix)}")
        )
    if isinstance(error, exceptions.PreconditionFailed) and "inequivalent" in said:
        mend = "delete it, or give a prefix of your own (OPTIONS)"
        return BrokerRefused(f"{at} has something of that name with other arguments: {said}; {mend}.")
    if isinstance(error, exceptions.NotFound):
        return BrokerUnavailable(
            _("%(server)s: something was deleted, and is made again: %(said)s.", server=at, said=said)
        )
    if isinstance(error, ssl.SSLError):
        said += "; if its port speaks no TLS, write amqp://, or the port that does (5671)"
    return BrokerUnavailable(_("%(server)s is away: %(said)s", server=at, said=f"{said}."))


def _mend(said: str, location: Location, prefix: str) -> str:
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
