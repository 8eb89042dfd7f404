"""LOCATION: where the RabbitMQ node is and how to log in. The one place that knows the password."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from amqp import Connection
from django.core.exceptions import ImproperlyConfigured
from django.views.decorators.debug import sensitive_variables

TIMEOUT_S = 2.0
"""How long a connection waits for the server, at its start and for each reply."""
HEARTBEAT_S = 7
"""A frozen or unreachable worker is given up by the server after two of them: about one lease."""

_PORTS = {"amqp": 5672, "amqps": 5671}
_FORM = "write amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps://…"


@dataclass(frozen=True, slots=True)
class Location:
    """One parsed LOCATION. `shown` is fit for every eye."""

    shown: str
    user: str
    vhost: str
    options: Mapping[str, Any] = field(repr=False)

    @sensitive_variables()
    def connect(self, timeout: float = TIMEOUT_S, heartbeat: int = 0) -> Connection:
        """A new connection. `timeout` in seconds."""
        connection = Connection(
            **self.options,
            connect_timeout=timeout,
            read_timeout=TIMEOUT_S,
            write_timeout=TIMEOUT_S,
            heartbeat=heartbeat,
            client_properties={"product": "delayq"},
        )
        try:
            connection.connect()
        except BaseException:
            connection.collect()
            raise
        return connection


@sensitive_variables()
def parse_location(location: str) -> Location:
    """What LOCATION says; nothing is connected. Raises `ImproperlyConfigured` with the value and the fix."""
    shown = hide_password(location)
    try:
        parts = urlsplit(location)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:  # its text may hold the password
        raise _wrong(shown, "can't be read") from None
    if parts.scheme not in _PORTS:
        raise _wrong(shown, "is no address of RabbitMQ")
    if not parts.hostname:
        raise _wrong(shown, "names no host")
    if parts.query or parts.fragment or "/" in parts.path[1:]:
        raise _wrong(shown, "has more after the host than a vhost (a slash in it is %2F)")
    return _location(parts, port, shown)


@sensitive_variables()
def _location(parts: SplitResult, port: int, shown: str) -> Location:
    vhost = unquote(parts.path[1:]) or "/"
    user = unquote(parts.username or "guest")
    tls = parts.scheme == "amqps"
    options = {
        "host": f"{parts.hostname}:{port}",
        "userid": user,
        "password": unquote(parts.password or "guest"),
        "virtual_host": vhost,
        "login_method": "PLAIN",
        # Without a context py-amqp would take any certificate.
        "ssl": {"context": {"check_hostname": True}, "server_hostname": parts.hostname} if tls else False,
    }
    return Location(shown, user, vhost, options)


def hide_password(location: str) -> str:
    """`location` without its password, also when it is badly written."""
    scheme, mark, rest = location.partition("://")
    if not mark:
        scheme, rest = "", location
    login, at, address = rest.rpartition("@")
    if not at:
        return location
    name = login.partition(":")[0]
    return f"{scheme}{mark}{name}:***@{address}"


def _wrong(shown: str, what: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"LOCATION {shown!r} {what}; {_FORM}, with special characters percent-encoded.")
