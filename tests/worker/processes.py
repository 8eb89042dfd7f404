"""Real `run_delayq` processes on a real Redis, and the line on which their handlers talk to the test."""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from django_delayq.brokers.base import Backend, Header, Info, NewMessage
from django_delayq.core import codec
from tests.proxy import Fault
from tests.servers.cluster import until
from tests.servers.process import DIES_WITH_US

PATIENCE_S = 60.0


class Call:
    """What a handler said: "holds <id> <attempt> <pid>". `release` lets one that holds go on."""

    def __init__(self, text: str, line: socket.socket) -> None:
        self.what, self.id, attempt, pid = text.split()
        self.attempt, self.pid = int(attempt), int(pid)
        self._line = line

    def release(self) -> None:
        """Let the handler go on."""
        self._line.close()

    def ended(self) -> bool:
        """Wait until the process that called is gone."""
        self._line.settimeout(PATIENCE_S)
        return self._line.recv(1) == b""


class Line:
    """A unix socket that handlers call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._lines: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(100)
        self._thread = threading.Thread(target=self._accept_forever, daemon=True)
        self._thread.start()

    def next(self) -> Call:
        """The next call, waited for."""
        return self._calls.get(timeout=PATIENCE_S)

    def next_of(self, id: str) -> Call:
        """The next call for a message; those for others are dropped."""
        while (call := self.next()).id != id:
            call.release()
        return call

    def none_waits(self) -> bool:
        """Return whether nothing was said that the test has not heard."""
        return self._calls.empty()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for line in (self._listener, *self._lines):
            line.close()

    def _accept_forever(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self._lines.append(line)
            text = line.recv(1_000).decode()
            if text:  # else its process was killed before it could speak
                self._calls.put(Call(text, line))


class WorkerProcess:
    """One `manage.py run_delayq`, without system checks: they are a seventh of its start, and not what is tested."""

    def __init__(self, env: dict[str, str], *arguments: str) -> None:
        self.output: list[str] = []
        self._grown = threading.Condition()
        self._process = subprocess.Popen(
            [*DIES_WITH_US, sys.executable, "-m", "django", "run_delayq", "--skip-checks", *arguments],
            env=os.environ | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Return whether it is no more."""
        return self._process.poll() is not None

    def until_says(self, text: str) -> None:
        """Wait until its output has a text."""
        self.until_says_times(text, 1)

    def says_within(self, text: str, seconds: float) -> bool:
        """Return whether it says a text in so many seconds."""
        with self._grown:
            return self._grown.wait_for(lambda: text in self.text, seconds)

    def until_says_times(self, text: str, times: int) -> None:
        """Wait until its output has a text so many times."""
        with self._grown:
            assert self._grown.wait_for(lambda: self.text.count(text) >= times, PATIENCE_S), self.text

    @property
    def text(self) -> str:
        """Return what it has said so far."""
        return "".join(self.output)

    def signal_all(self, signum: signal.Signals) -> None:
        """Give a signal to it and to what it started, as a machine does that is suspended."""
        for pid in (self.pid, *self.children):
            os.kill(pid, signum)

    def signal(self, signum: signal.Signals) -> None:
        self._process.send_signal(signum)

    @property
    def children(self) -> list[int]:
        """The ids of the processes that it started: with --processes, its workers."""
        return [] if self.has_ended else [child.pid for child in psutil.Process(self.pid).children()]

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        """Its exit code."""
        code = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        """Make sure that it is gone, and what --reload started too."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            with self._grown:
                self.output.append(text)
                self._grown.notify_all()


class Site:
    """A site on Redis: sends messages, starts workers, hears their handlers."""

    def __init__(self, broker: Backend, env: dict[str, str], line: Line) -> None:
        self.broker = broker
        self.env = env
        self.line = line
        self._workers: list[WorkerProcess] = []

    def send(self, *ids: str, key: str = "run", data: Any = "", **header: Any) -> None:
        """Send messages that are due now."""
        header.setdefault("queue", "default")
        body = codec.dumps(data)
        self.broker.queue.enqueue([NewMessage(id, Header(key=key, **header), body) for id in ids])

    def worker(self, *arguments: str) -> WorkerProcess:
        """A worker process, ended with the test at the latest."""
        worker = WorkerProcess(self.env, *arguments)
        self._workers.append(worker)
        return worker

    def see(self, id: str) -> Info:
        """A message that is somewhere."""
        info = self.broker.queue.get(id)
        assert info is not None, f"there is no message {id!r}"
        return info

    def totals(self) -> dict[str, int]:
        """Return how often each move was made; and the audit must agree."""
        audit = self.broker.queue.audit()
        assert audit.differences == []
        return audit.totals

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # each, also where one does not end
            for worker in self._workers:
                stack.callback(worker.close)


def kill_and_take_over(site: Site) -> None:
    """Kill a worker that runs two messages: another runs both again, as their first attempt, and they finish."""
    site.send("a", "b", key="hold")
    killed = site.worker()
    held = {site.line.next().id, site.line.next().id}
    assert held == {"a", "b"}
    killed.kill()
    other = site.worker()
    again = [site.line.next(), site.line.next()]
    assert {call.id for call in again} == held
    for call in again:
        assert call.attempt == 1
        call.release()
    assert {site.line.next().what, site.line.next().what} == {"ran"}
    assert other.stop() == 0


def release_one_by_one(site: Site, held: Call, count: int) -> list[Call]:
    """Let a handler that holds go on whose worker is dead, then each that follows, none of which runs beside another.

    Return the calls of the `count` that followed, each of which has ended.
    """
    held.release()
    calls: list[Call] = []
    while len(calls) < count:
        call = site.line.next()
        assert call.what == "holds"
        assert site.line.none_waits()
        call.release()
        assert site.line.next_of(call.id).what == "ran"
        calls.append(call)
    return calls


def kill_with_all_permits(site: Site) -> None:
    """Kill a worker that holds all permits of a limit: another has none before, and all of them once they lapse."""
    site.env["DELAYQ_TEST_LIMITS"] = "1"
    site.send("a", "b", key="pair")
    killed = site.worker()
    assert {site.line.next().id, site.line.next().id} == {"a", "b"}
    site.send("c", "d", key="pair")
    other = site.worker()
    other.until_says("Connections at most")
    assert site.line.none_waits()
    killed.kill()
    held = [site.line.next(), site.line.next()]
    ran: set[str] = set()
    while len(ran) < 4:
        assert site.line.none_waits()
        call = held.pop()
        call.release()
        assert site.line.next_of(call.id).what == "ran"
        ran.add(call.id)
        if len(ran) + len(held) < 4:
            held.append(site.line.next())
    assert other.stop() == 0


def kill_with_starts(site: Site) -> None:
    """Kill a worker that has started two messages of a burst, and taken starts ahead: in all no more than it start."""
    site.env["DELAYQ_TEST_LIMITS"] = "1"
    ids = [f"s{n}" for n in range(15)]
    site.send(*ids, key="burst", data="the same")
    killed = site.worker("--threads", "2")
    calls = [site.line.next(), site.line.next()]
    killed.kill()
    other = site.worker("--threads", "2")
    ran: set[str] = set()

    def all_ran_or_wait() -> bool:
        while not site.line.none_waits():
            call = site.line.next()
            if call.what == "ran":
                ran.add(call.id)
            else:
                calls.append(call)
                call.release()
        later_ms = site.broker.queue.counts().now_ms + 60_000
        rest = [site.broker.queue.get(id) for id in ids if id not in ran]
        return all(info is not None and info.due_ms > later_ms for info in rest)

    until(all_ran_or_wait)
    assert 8 <= len(calls) <= 10, "two may be lost with the killed one"
    assert other.stop() == 0


def kill_once_settled(site: Site, worker: WorkerProcess, settled: Fault, finished: int) -> None:
    """Kill the process of a worker that has settled its message and not heard of it: that is no overrun.

    `settled` is the reply that it waits for, and `finished` how many messages have finished then.
    """
    site.send("a")
    pid = site.line.next_of("a").pid
    assert settled.happened.wait(PATIENCE_S)
    assert site.totals()["finished"] == finished
    os.kill(pid, signal.SIGKILL)
    worker.until_says("1 message(s) that had ended in a worker process before it died need nothing more")
    assert worker.stop() == 0
    assert "overrun" not in worker.text
    assert site.line.none_waits()
    assert site.totals()["finished"] == finished


@contextlib.contextmanager
def site_with(alias: Mapping[str, Any], broker: Backend, env: Mapping[str, str], directory: Path) -> Iterator[Site]:
    """A site whose processes have this alias, with a line in a directory in this one; its workers end with it."""
    with (
        TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as own,  # handlers leave files beside the line
        contextlib.closing(Line(Path(own, "line.sock"))) as line,
        contextlib.closing(broker),
    ):
        told = {
            "DJANGO_SETTINGS_MODULE": "tests.worker.settings",
            "DELAYQ_TEST": json.dumps(alias),
            "DELAYQ_TEST_LINE": str(line.path),
        }
        with contextlib.closing(Site(broker, {**env, **told}, line)) as site:
            yield site
