"""A private server of the tests: a real one, in a short directory of its own, ended by its pid."""

import os
import pwd
import queue
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, ClassVar, NoReturn

import psutil
import pytest

START_S = 180  # RabbitMQ needs 8 s of a core, and there may be many for it

# A suite that is killed can't clean up. Where there is no setpriv (it is Linux's), such a process stays.
DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def _is_stopped(pid: int) -> bool:
    """Return whether each thread of a process is: the signal reaches one of them first."""
    try:
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except FileNotFoundError:  # a thread has ended meanwhile
        return False
    return all(state in "TZ" for state in states)  # of one that has ended, or where there is no /proc, there are none


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


def unprivileged() -> dict[str, Any]:
    """Return what Popen needs for a server that refuses to run as root: another user, if we are root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def version_of(program: str | Path, **identity: Any) -> tuple[int, ...]:
    """The version that a server's program says it is; () when it can't be run as `identity`."""
    try:
        said = subprocess.check_output([program, "--version"], cwd="/", text=True, **identity)
    except (OSError, subprocess.CalledProcessError):
        return ()
    found = re.search(r"\d+(\.\d+)+", said)
    return tuple(map(int, found[0].split("."))) if found else ()


class PrivateServer(ABC):
    """A server process. What is in its directory stays over `restart()`; `close()` ends all."""

    READY: ClassVar[str]
    """What its log says, in lower case, as soon as it answers."""
    STOP: ClassVar[signal.Signals] = signal.SIGTERM
    """The signal of an orderly end that waits for no client."""

    def __init__(self, **identity: Any) -> None:
        """`identity` is whom to run it as, from `unprivileged()`; its directory belongs to that user."""
        self.identity = identity
        # Not pytest's tmp_path: a socket's path has at most 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="delayq-", dir="/tmp"))
        if identity:
            os.chown(self.directory, identity["user"], identity["group"])
        self.log: list[str] = []

    @abstractmethod
    def command(self) -> list[str]:
        """The program and its arguments."""

    def prepare(self, command: list[str]) -> None:
        """Run what has to be done in its directory before the first start."""
        done = subprocess.run(
            command, cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **self.identity
        )
        if done.returncode:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout}")

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Return whether there is a process."""
        return self.process.poll() is None

    def start(self) -> None:
        """Start and return when it answers."""
        self.process = subprocess.Popen(
            [*DIES_WITH_US, *self.command()],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a Ctrl-C on the suite must not kill it under a test
            **self.identity,
        )
        ready: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._log_reader = threading.Thread(target=self._read_log, args=(self.process.stdout, ready), daemon=True)
        self._log_reader.start()
        try:
            answers = ready.get(timeout=START_S)
        except queue.Empty:
            answers = False
        if not answers:
            self.close()
            raise RuntimeError(f"{self.command()[0]} did not start:\n{''.join(self.log)}")

    def _read_log(self, lines: IO[str], ready: "queue.SimpleQueue[bool]") -> None:
        with lines:
            for line in lines:
                self.log.append(line)
                if self.READY in line.lower():
                    ready.put(True)
        ready.put(False)

    def stop(self) -> None:
        """End it in an orderly way; its data are kept for `start()`."""
        self.process.send_signal(self.STOP)
        self.thaw()
        self.process.wait(START_S)

    def kill(self) -> None:
        """End it and its children at once (SIGKILL)."""
        self.process.send_signal(signal.SIGSTOP)  # first, so that it starts no more children
        self._signal_children(signal.SIGKILL)
        self.process.kill()
        self.process.wait(START_S)
        self._log_reader.join(START_S)  # the log ends when the last child, which writes to it too, is gone

    def restart(self) -> None:
        """Stop and start on the same data."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stop its processes without closing a connection (SIGSTOP): a hung server."""
        self.process.send_signal(signal.SIGSTOP)
        self._signal_children(signal.SIGSTOP)
        processes = [self.pid, *(child.pid for child in psutil.Process(self.pid).children(recursive=True))]
        while not all(map(_is_stopped, processes)):  # a thread of it may still answer a little later
            time.sleep(0.001)

    def thaw(self) -> None:
        """Let a frozen one run on."""
        self._signal_children(signal.SIGCONT)
        self.process.send_signal(signal.SIGCONT)

    def _signal_children(self, number: signal.Signals) -> None:
        if self.running:
            for child in psutil.Process(self.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.send_signal(number)

    def close(self) -> None:
        """End it for good and remove its directory."""
        if self.running:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
