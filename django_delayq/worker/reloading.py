"""`--reload`: Django's autoreloader, with a worker that winds down before the process starts again."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from django.core.management.base import CommandError
from django.utils import autoreload

from django_delayq.core.errors import DelayqError
from django_delayq.support.logging import logger
from django_delayq.worker.shutdown import Runnable

CODE_CHANGED = 3
"""The exit code with which Django's autoreloader asks to be started again."""
LOOK_S = 1.0
"""How often it looks for a change of code that can't be loaded."""
FAILED = 1
"""The exit code for code that can't be loaded, or that fails its checks: it has told why."""


def run_reloading(make_worker: Callable[[], Runnable]) -> None:
    """Run a worker that winds down, and starts again in a new process, when code changes. For development.

    SIGTERM, and a terminal's Ctrl-C, end it as they end a worker; a second Ctrl-C interrupts what runs.
    """
    if os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true":
        _run_watched(make_worker)
    else:
        sys.exit(_start_again_and_again())


def _start_again_and_again() -> int:
    """Run the inner process, start it again when it asks, pass SIGTERM on, and return its exit code."""
    inner: list[subprocess.Popen[bytes]] = []
    stopping = threading.Event()

    def stop(signum: int, frame: object) -> None:
        stopping.set()
        for process in inner:
            if signum == signal.SIGTERM:  # a terminal's Ctrl-C reaches it by itself
                process.terminate()

    # Django's own restart waits in `subprocess.run`, which kills the inner process when a signal ends the wait.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    code = CODE_CHANGED
    while code == CODE_CHANGED and not stopping.is_set():
        started_at = time.time()
        environment = os.environ | {autoreload.DJANGO_AUTORELOAD_ENV: "true"}
        inner[:] = [subprocess.Popen(autoreload.get_child_arguments(), env=environment)]  # noqa: S603 - our own command
        if stopping.is_set():  # the signal came before there was a process to pass it to
            inner[0].terminate()
        code = inner[0].wait()
        if code == FAILED and not stopping.is_set():
            logger.error("The code can't be run. Waiting for a change of code.")
            code = _wait_for_change(started_at, stopping)
    if stopping.is_set() and code in (CODE_CHANGED, -signal.SIGTERM):  # wound down already, or not begun
        return 0
    return code if code >= 0 else 128 - code


def _wait_for_change(since: float, stopping: threading.Event) -> int:
    """Wait until a file of the code that this process has loaded is changed, as the inner process would.

    That one could not load it. A module that is new since this process started is not known here.
    """
    while not any(_changed_at(path) > since for path in autoreload.iter_all_python_module_files()):
        if stopping.wait(LOOK_S):
            break
    return CODE_CHANGED


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed
        return 0.0


def _run_watched(make_worker: Callable[[], Runnable]) -> None:
    workers: list[Runnable] = []
    ended = threading.Event()

    def run() -> None:
        try:
            worker = make_worker()
            workers.append(worker)
            worker.run()
        except (CommandError, DelayqError) as error:
            logger.error("%s Waiting for a change of code.", error)
        finally:
            ended.set()

    try:
        autoreload.run_with_reloader(run)
    finally:
        for worker in workers:
            _hurry_on_ctrl_c(worker)
            logger.info("Code changed, or a signal came: finishing what runs.")
            worker.stop()
            ended.wait()


def _hurry_on_ctrl_c(worker: Runnable) -> None:
    # SIGTERM may come twice, from the outer process and from whoever signals the whole group.
    signal.signal(signal.SIGTERM, lambda signum, frame: None)
    signal.signal(signal.SIGINT, lambda signum, frame: worker.hurry())
