"""Run the real `run_delayq` in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from benchmarks.server import AnyServer
from benchmarks.until import POLL_S, wait_until
from django_delayq.brokers import get_backend

RECORDS = "records"
"""The file in the server's directory that the handlers write to."""


class Worker:
    """A running worker."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """Return the worker's process id."""
        return self._process.pid

    def wait_until_up(self, count: int = 1) -> None:
        """Wait until the broker of the current site knows `count` workers."""
        self.wait_until(lambda: len(get_backend().presence.workers()) >= count, "it announces itself", 60 + 10 * count)

    def wait_until(
        self, happened: Callable[[], bool], what: str, within_s: float = 60, every_s: float = POLL_S
    ) -> float:
        """Wait like `until.wait_until`. Raises `RuntimeError` with the worker's log if the worker ends before."""
        at = wait_until(lambda: happened() or self._process.poll() is not None, what, within_s, every_s)
        if not happened():
            raise RuntimeError(f"The worker ended before this: {what}.\n{self._log.read_text()[-4000:]}")
        return at

    def wait(self) -> None:
        """Wait until the worker has ended by itself. Raises `RuntimeError` with its log if its exit code is not 0."""
        if self._process.wait(600):
            raise RuntimeError(f"The worker exited {self._process.returncode}:\n{self._log.read_text()[-4000:]}")

    def kill(self) -> None:
        """End the worker at once."""
        self._process.kill()
        self._process.wait()


@contextmanager
def worker(
    server: AnyServer,
    *options: str,
    shards: int | None = None,
    hold_s: float = 0,
    env: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Worker]:
    """Yield a worker, at its defaults but for `options` and `env`. It is killed at the end of the block.

    Handlers that keep their thread busy do so for `hold_s`.
    """
    log = server.directory / "worker.log"
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "django", "run_delayq", *options],
            cwd=Path(__file__).parent.parent,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
                "DELAYQ_BENCH_LOCATION": server.url,
                "DELAYQ_BENCH_RECORDS": str(server.directory / RECORDS),
                "DELAYQ_BENCH_HOLD_S": str(hold_s),
                "DELAYQ_BENCH_SHARDS": json.dumps(shards),
                "PYTHONDONTWRITEBYTECODE": "",  # what a site has installed is compiled once, not at each start
                **env,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    started = Worker(process, log)
    try:
        yield started
    finally:
        started.kill()
