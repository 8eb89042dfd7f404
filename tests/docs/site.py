"""The Django site in a temporary directory in which a page is run as its reader would run it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from django_delayq.brokers.redis.client.embedded import stop

ROOT = Path(__file__).resolve().parents[2]
MODELS = """from django.db import models


class Order(models.Model):
    email = models.EmailField()
    state = models.CharField(max_length=10, default="open")
"""
DELAYQ = """
INSTALLED_APPS += ["django_delayq"]
DELAYQ = {"default": {"LOCATION": "embedded://"}}
DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"}
"""
HANDLER = """from django_delayq import Message, delay_execute
from shop.models import Order


@delay_execute(key="order.close", max_attempts=5)
def close_order(message: Message[int]) -> None:
    Order.objects.filter(pk=message.data, state="open").update(state="closed")
"""
PATIENCE_S = 60

_FILE = re.compile(r"# (\w[\w/]*\.(?:py|ini))(: add at the end)?\n")


class Site:
    """A directory with what a page's reader has so far, and the processes that the page has started.

    They run on `interpreter`, and find what is in `path` beside what is installed there.
    """

    def __init__(self, directory: Path, url: str, interpreter: Path = Path(sys.executable), path: Path = ROOT) -> None:
        self.directory = directory
        self._url = url
        self._interpreter = interpreter
        self._path = path
        self._processes: list[Process] = []
        self.snippets: Process | None = None

    @property
    def last(self) -> "Process":
        """The process that was started last and left running."""
        return self._processes[-1]

    def make_shop(self) -> None:
        """Begin with a shop that has orders, made as Django makes a site."""
        self._do("django-admin startproject mysite . && python manage.py startapp shop")
        (self.directory / "shop/models.py").write_text(MODELS)
        self._extend_settings('INSTALLED_APPS += ["shop"]\n')
        self._do("python manage.py makemigrations shop && python manage.py migrate")

    def add_delayq(self) -> None:
        """Add what the README says: the settings, the tables and a handler."""
        self._extend_settings(DELAYQ)
        self._do("python manage.py migrate")
        (self.directory / "shop/delayed.py").write_text(HANDLER)

    def _extend_settings(self, lines: str) -> None:
        with (self.directory / "mysite/settings.py").open("a") as settings:
            settings.write(lines)

    def _do(self, command: str) -> None:
        code, output = self.run(command)
        assert code == 0, output

    def save(self, block: str) -> bool:
        """Save a block that begins with the name of its file. False for any other."""
        found = _FILE.match(block)
        if not found:
            return False
        path = self.directory / found[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if found[2] else "w") as file:
            file.write("\n" + block.replace("redis://127.0.0.1:6379/0", self._url))
        self.snippets = None  # the next snippet is to see the file
        return True

    def run(self, command: str) -> tuple[int, str]:
        """Run a shell command to its end: its exit code and what it wrote."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
        )
        return done.returncode, done.stdout

    def start(self, command: str) -> "Process":
        """Run a command that goes on until it is stopped."""
        self._processes.append(Process(command.split(), self.directory, self._environment()))
        return self.last

    def close(self) -> None:
        """End what the page has started."""
        for process in self._processes:
            process.close()
        for lock in self.directory.glob("**/redis.lock"):
            stop(lock.parent)

    def _environment(self) -> dict[str, str]:
        path = f"{self._interpreter.parent}{os.pathsep}{os.environ['PATH']}"
        ours = {
            name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "DELAYQ_", "PYTEST_"))
        }
        return ours | {"PATH": path, "PYTHONPATH": str(self._path), "PYTHONUNBUFFERED": "1", "COLUMNS": "120"}


class Process:
    """A running command whose lines can be awaited."""

    def __init__(self, arguments: list[str], directory: Path, environment: dict[str, str]) -> None:
        executable = shutil.which(arguments[0], path=environment["PATH"]) or arguments[0]
        self._process = subprocess.Popen(
            [executable, *arguments[1:]],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def write(self, line: str) -> None:
        """Give it one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def line(self) -> str | None:
        """The next line that it writes, None at its end."""
        try:
            return self._lines.get(timeout=PATIENCE_S)
        except Empty:
            raise AssertionError(f"{self._process.args!r} wrote nothing in {PATIENCE_S} s") from None

    def interrupt(self) -> int:
        """Press Ctrl-C: its exit code."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(PATIENCE_S)

    def close(self) -> None:
        """End it, whatever it does."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)
