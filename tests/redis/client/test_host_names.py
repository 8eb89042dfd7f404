"""Over TLS, a password is given only to a server whose certificate is for the name that was asked for."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from django_delayq.brokers.redis.client import Client, ask, client_of, colocated, parse_location
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable

ELSEWHERE = "elsewhere.example"
WHY = r"Hostname mismatch|IP address mismatch"


class Listener:
    """A port of 127.0.0.1 that speaks TLS with a certificate of the trusted CA, and keeps what it is told."""

    def __init__(self, authority: trustme.CA, name: str, answer: bytes = b"") -> None:
        self.told = b""
        self._answer = answer
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(name).configure_cert(self._context)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed
                return
            try:
                with self._context.wrap_socket(connection, server_side=True) as client:
                    while data := client.recv(65_536):
                        self.told += data
                        commands = data.count(b"*")
                        client.sendall(self._answer if b"MASTERS" in data.upper() else b"+OK\r\n" * commands)
            except OSError:  # the client hung up in the handshake
                continue

    def close(self) -> None:
        """Listen no more."""
        self._listening.close()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Callable[..., Listener]]:
    """A listener with a certificate for a name, of the CA in ca.pem."""
    authority, started = trustme.CA(), list[Listener]()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    def listener(name: str, answer: bytes = b"") -> Listener:
        started.append(Listener(authority, name, answer))
        return started[-1]

    yield listener
    for each in started:
        each.close()


def client_at(location: str, tmp_path: Path) -> Client:
    mark = "&" if "?" in location else "?"
    return client_of(parse_location(f"{location}{mark}ssl_ca_certs={tmp_path}/ca.pem"))


def test_a_server_of_another_name_is_not_given_the_password(listener: Callable[..., Listener], tmp_path: Path) -> None:
    impostor = listener(ELSEWHERE)
    assert_refused(client_at(f"rediss://:hush@127.0.0.1:{impostor.port}/0", tmp_path))
    assert_refused(client_at(f"rediss+cluster://:hush@127.0.0.1:{impostor.port}", tmp_path))
    sentinel = client_at(f"rediss+sentinel://127.0.0.1:{impostor.port}/shop/0?sentinel_password=hush", tmp_path)
    with closing(sentinel), pytest.raises(BrokerUnavailable, match="no sentinel answers"):  # another one may
        sentinel.run(ask(colocated("k", "TIME")), budget=0.2)
    assert impostor.told == b""


def test_nor_is_a_primary_that_a_sentinel_names(listener: Callable[..., Listener], tmp_path: Path) -> None:
    impostor = listener(ELSEWHERE)
    facts = [
        "name",
        "shop",
        "ip",
        "127.0.0.1",
        "port",
        str(impostor.port),
        "flags",
        "master",
        "num-other-sentinels",
        "0",
    ]
    told = "".join(f"${len(fact)}\r\n{fact}\r\n" for fact in facts)
    sentinel = listener("127.0.0.1", f"*1\r\n*{len(facts)}\r\n{told}".encode())
    assert_refused(client_at(f"rediss+sentinel://:hush@127.0.0.1:{sentinel.port}/shop/0", tmp_path))
    assert b"MASTERS" in sentinel.told.upper()
    assert impostor.told == b""


def assert_refused(client: Client) -> None:
    """Assert that neither kind of connection is made."""
    with closing(client):
        with pytest.raises(BrokerRefused, match=WHY):
            client.run(ask(colocated("k", "TIME")))
        with pytest.raises(BrokerRefused, match=WHY):
            asyncio.run(client.arun(ask(colocated("k", "TIME"))))
