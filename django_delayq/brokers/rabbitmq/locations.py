"""Parse LOCATION: where the RabbitMQ node is and how to log in.

A dict is first converted into the URL that says the same, so that the same rules hold for both.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from amqp import Connection
from django.core.exceptions import ImproperlyConfigured
from django.views.decorators.debug import sensitive_variables

from django_delayq.brokers.addresses import checked
from django_delayq.brokers.rabbitmq.frames import read_frames
from django_delayq.support.sanitize import hidden

TIMEOUT_S = 2.0
"""How long to wait for the server to connect, and for each reply."""
HEARTBEAT_S = 7
"""The AMQP heartbeat time-out in seconds. The server gives up an unreachable worker after twice this: about a lease."""

DEFAULT_USER = "guest"
"""The user that a fresh RabbitMQ has, whose password is the same word."""

_PORTS = {"amqp": 5672, "amqps": 5671}
_FORM = "write amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps://…"
_FILES = {"ssl_ca_certs": "ca_certs", "ssl_certfile": "certfile", "ssl_keyfile": "keyfile"}
"""The options of amqps://, which have the names that redis-py gives them, and py-amqp's names for them."""

_TLS = {name.removeprefix("ssl_"): (str, os.PathLike) for name in _FILES}
_DICT = {
    **dict.fromkeys(("host", "vhost", "username", "password"), (str,)),
    "port": (int,),
    "tls": (bool, Mapping),
}
"""The names that a dict may have, and the types of their values."""


@dataclass(frozen=True, slots=True)
class Location:
    """One parsed LOCATION. `shown` is the URL without its password."""

    shown: str
    hostname: str
    user: str
    vhost: str
    options: Mapping[str, Any] = field(repr=False)

    @sensitive_variables()
    def connect(self, timeout: float = TIMEOUT_S, heartbeat: int = 0) -> Connection:
        """Open a new connection. `timeout` is in seconds."""
        connection = Connection(
            **self.options,
            connect_timeout=timeout,
            read_timeout=TIMEOUT_S,
            write_timeout=TIMEOUT_S,
            heartbeat=heartbeat,
            client_properties={"product": "delayq"},
            frame_handler=read_frames,
        )
        try:
            connection.connect()
        except BaseException:
            connection.collect()
            raise
        return connection


@sensitive_variables()
def parse_location(location: object) -> Location:
    """Parse LOCATION without connecting. Raises `ImproperlyConfigured`, naming the value and the fix."""
    if isinstance(location, Mapping):
        location = _url_of(location)
    if not isinstance(location, str):
        raise ImproperlyConfigured(f"LOCATION is {type(location).__name__}; give the URL of RabbitMQ, or a dict.")
    shown = hidden(location, _FILES)
    try:
        parts = urlsplit(location)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:  # its text may hold the password
        raise _wrong(shown, "can't be read") from None
    if parts.scheme not in _PORTS:
        raise _wrong(shown, "is no address of RabbitMQ")
    if not parts.hostname:
        raise _wrong(shown, "names no host")
    if parts.fragment or "/" in parts.path[1:]:
        raise _wrong(shown, "has more after the host than a vhost (a slash in it is %2F)")
    return _location(parts, port, shown)


@sensitive_variables()
def _url_of(location: Mapping[Any, Any]) -> str:
    given = checked("LOCATION", location, _DICT, _TLS)
    host, tls = given.get("host", ""), given.get("tls", False)
    if not host or any(mark in host for mark in "@/?,#"):
        raise ImproperlyConfigured(
            'LOCATION["host"] is no host: give the name of one; port and login have their own names.'
        )
    if host.count(":") > 1 and host[0] != "[":
        host = f"[{host}]"
    username, password, vhost = (quote(given.get(name, ""), safe="") for name in ("username", "password", "vhost"))
    login = f"{username}:{password}@" if username or password else ""
    vhost = f"/{vhost}" if vhost else ""
    port = f":{given['port']}" if "port" in given else ""
    files = checked('LOCATION["tls"]', tls, _TLS) if isinstance(tls, Mapping) else {}
    query = urlencode({f"ssl_{name}": os.fspath(path) for name, path in files.items()}, quote_via=quote)
    return f"{'amqp' if tls is False else 'amqps'}://{login}{host}{port}{vhost}{'?' * bool(query)}{query}"


@sensitive_variables()
def _location(parts: SplitResult, port: int, shown: str) -> Location:
    vhost = unquote(parts.path[1:]) or "/"
    user = unquote(parts.username or DEFAULT_USER)
    options = {
        "host": f"{parts.hostname}:{port}",
        "userid": user,
        "password": unquote(parts.password or DEFAULT_USER),
        "virtual_host": vhost,
        "login_method": "PLAIN",
        "ssl": _tls(parts, shown),
    }
    return Location(shown, parts.hostname or "", user, vhost, options)


def _tls(parts: SplitResult, shown: str) -> dict[str, Any] | bool:
    """Return py-amqp's TLS options, with which the server's certificate is verified; False for no TLS."""
    files = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = _FILES if parts.scheme == "amqps" else {}
    for name, path in files.items():
        if name not in known:
            raise _wrong(shown, f"has the option {name!r}, and takes {', '.join(known) or 'none without TLS'}")
        if not os.path.isfile(path):
            raise _wrong(shown, f"has {name}={path!r}, which is no file here")
    if not known:
        return False
    options = {known[name]: path for name, path in files.items()}
    return {"server_hostname": parts.hostname, "cert_reqs": ssl.CERT_REQUIRED, **options}


def _wrong(shown: str, what: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"LOCATION {shown!r} {what}; {_FORM}, with special characters percent-encoded.")
