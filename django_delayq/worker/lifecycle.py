"""The life of a worker's process: signals, its exit, `--reload`, and its signs of life to probes and systemd."""

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from django.core.management.base import CommandError
from django.utils import autoreload

from django_delayq.brokers.base import SettleAction
from django_delayq.core.errors import DelayqError
from django_delayq.support.logging import logger
from django_delayq.worker.process.spawn import die_with_parent

LOOK_S = 1.0
"""How often the main thread wakes to handle signals, in seconds.

While the code can't be loaded, `--reload` also checks this often whether it has changed.
"""
LAST_WORDS_S = 5.0
"""How long a worker that ends waits for each of its threads to do its last work, such as settling, in seconds."""
INTERRUPTED = (
    "Not every handler ended in time. What still ran was interrupted: it runs again, but what is at_most_once fails."
)


class Runnable(Protocol):
    """A worker, or the supervisor of several."""

    @property
    def counts(self) -> "Counter[SettleAction]":
        """Return how many leases ended by each action."""

    @property
    def served(self) -> set[tuple[str, str]]:
        """Return the (queue, key) pairs that are claimed from."""

    def run(self) -> bool:
        """Work until there is a reason to stop, then wind down. Return False if a handler did not end in time."""

    def stop(self) -> None:
        """Claim no more, release what has not started, and let running handlers finish within the shutdown time-out."""

    def hurry(self) -> None:
        """Interrupt running handlers when winding down, instead of waiting for them."""


Run = Callable[[Runnable], bool]


def run_until_signalled(make_worker: Callable[[], Runnable], run: Run = lambda worker: worker.run()) -> None:
    """Make and run a worker until it is done, or SIGTERM or SIGINT stops it. Call it in the main thread.

    It returns if the worker ended well, and raises what making or running the worker raised. A second signal interrupts
    the handlers, and ends the process within 10 s. If a handler doesn't end in time, the process ends without waiting
    for it, with exit code 0, because its message is safe.
    """
    # The main thread only reads this pipe: a signal handler must take no lock, and the thread that it interrupts
    # might hold any.
    reader, writer = os.pipe()
    running = _Running(make_worker, run, lambda: os.write(writer, b"\0"))
    with taken_signals(lambda signum: os.write(writer, bytes([signum]))):
        running.thread.start()
        first = _next_byte(reader)
        if first and running.stop():
            logger.info("Stopping on %s: finishing what runs; a second signal stops at once.", _name(first))
            second = _next_byte(reader)
            if second:
                logger.warning("Stopping at once on a second %s.", _name(second))
                running.hurry(LAST_WORDS_S * 2)
                exit_at_once(128 + second)
        elif first:
            return  # the broker was still waited for: nothing is held
        running.thread.join()
    os.close(reader)
    os.close(writer)
    if running.error is not None:
        raise running.error
    if not running.ended_well:
        logger.warning(INTERRUPTED)
        exit_at_once(0)


def _next_byte(reader: int) -> int:
    # Python handles a signal in the main thread, and a read is not interrupted by one that the system gave to another
    # thread, or that came a moment before the read: so the main thread looks up now and then.
    poll = select.poll()  # `select.select` takes no descriptor over 1023
    poll.register(reader, select.POLLIN)
    while not poll.poll(LOOK_S * 1000):
        pass
    return os.read(reader, 1)[0]


class _Running:
    """A worker that runs in a thread of its own."""

    def __init__(self, make_worker: Callable[[], Runnable], run: Run, on_end: Callable[[], object]) -> None:
        self.thread = threading.Thread(target=self._run, name="delayq-loop", daemon=True)
        self.error: BaseException | None = None
        self.ended_well = False
        self._make_worker = make_worker
        self._run_worker = run
        self._on_end = on_end
        self._lock = threading.Lock()
        self._stopped = False
        self._worker: Runnable | None = None

    def stop(self) -> bool:
        """Stop the worker. Return False if it has not been made yet; if so, it will never run."""
        with self._lock:
            self._stopped = True
        if self._worker is None:
            return False
        self._worker.stop()
        return True

    def hurry(self, timeout: float) -> None:
        """Interrupt the worker's handlers, and wait at most `timeout` seconds for its end."""
        if self._worker is not None:
            self._worker.hurry()
        self.thread.join(timeout)

    def _run(self) -> None:
        try:
            worker = self._make_worker()
            with self._lock:
                if self._stopped:
                    return
                self._worker = worker
            self.ended_well = self._run_worker(worker)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self.error = error
        finally:
            self._on_end()


def exit_at_once(code: int) -> None:
    """End the process without waiting for threads: one of them may never end."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _name(signum: int) -> str:
    return signal.Signals(signum).name


_TAKEN = (signal.SIGTERM, signal.SIGINT)

_before: dict[int, Any] = {}
"""The earlier handler of each signal that `taken_signals` handles now."""
_forking = threading.local()


@contextmanager
def taken_signals(handle: Callable[[int], object]) -> Iterator[None]:
    """Call `handle` for SIGTERM and SIGINT within the block, but not in forked children. Use it in the main thread."""

    def handle_own(signum: int, frame: object) -> None:
        handle(signum)

    _before.update({signum: signal.signal(signum, handle_own) for signum in _TAKEN})
    try:
        yield
    finally:
        _restore_handlers()


def _restore_handlers() -> None:
    while _before:
        signum, handler = _before.popitem()
        signal.signal(signum, handler)


def _hold_back() -> None:
    # Python drops signals that a new process gets before its fork hooks have run, but the system keeps blocked ones.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _restore_in_child() -> None:
    _restore_handlers()
    _let_through()


os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_restore_in_child)


CODE_CHANGED = 3
"""The exit code with which Django's autoreloader asks to be started again."""
FAILED = 1
"""The exit code of a process whose code can't be loaded, or fails its checks, and which has logged why."""


def run_reloading(make_worker: Callable[[], Runnable]) -> None:
    """Run a worker for development, which winds down and starts again in a new process when code changes.

    SIGTERM, and Ctrl-C in a terminal, end it like any worker; a second Ctrl-C interrupts running handlers.
    """
    if os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true":
        _run_watched(make_worker)
    else:
        sys.exit(_start_again_and_again())


def _start_again_and_again() -> int:
    """Run the worker in an inner process, and start that again when it asks, or when code that failed has changed.

    Pass SIGTERM and SIGINT on to the inner process as SIGTERM, but a second SIGINT as it is, which interrupts handlers.
    Return the exit code with which to end.
    """
    inner: list[subprocess.Popen[bytes]] = []
    signals: list[int] = []  # no `Event`, whose lock a second signal would find taken by the handler of the first

    def stop(signum: int, frame: object) -> None:
        is_second_ctrl_c = signum == signal.SIGINT and bool(signals)
        signals.append(signum)
        for process in inner:  # a terminal's Ctrl-C reaches it by itself, but not that of an IDE
            process.send_signal(signal.SIGINT if is_second_ctrl_c else signal.SIGTERM)

    # Django's own restart waits in `subprocess.run`, which kills the inner process when a signal ends the wait.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    code = CODE_CHANGED
    while code == CODE_CHANGED and not signals:
        started_at = time.time()
        environment = os.environ | {autoreload.DJANGO_AUTORELOAD_ENV: "true"}
        inner[:] = [subprocess.Popen(autoreload.get_child_arguments(), env=environment)]  # noqa: S603 - our own command
        if signals:  # one came before there was a process to pass it to
            inner[0].terminate()
        code = _wait_for(inner[0])
        if code == FAILED and not signals:
            logger.error("The code can't be run. Waiting for a change of code.")
            while not signals and not _has_changed(started_at):
                time.sleep(LOOK_S)
            code = CODE_CHANGED
    if signals and code in (CODE_CHANGED, -signal.SIGTERM):  # wound down already, or not begun
        return 0
    return code if code >= 0 else 128 - code


def _wait_for(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the end of a process, and return its exit code. Look up now and then, as `_next_byte` does."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(LOOK_S)


def _has_changed(since: float) -> bool:
    """Return whether a loaded file of the code has changed.

    The process that runs the worker would look itself, but could not load the code. Only the modules that this process
    has loaded are watched.
    """
    return any(_changed_at(path) > since for path in autoreload.iter_all_python_module_files())


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed
        return 0.0


def _run_watched(make_worker: Callable[[], Runnable]) -> None:
    workers: list[Runnable] = []
    reader, writer = os.pipe()

    def run() -> None:
        try:
            worker = make_worker()
            workers.append(worker)
            worker.run()
        except (CommandError, DelayqError) as error:
            logger.error("%s Waiting for a change of code.", error)
        finally:
            os.write(writer, b"\0")

    # Django's `run_with_reloader` would exit anew on each signal, and so in the middle of winding down.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, _exit_once)
    die_with_parent(os.getppid(), signal.SIGTERM)  # an IDE may kill the outer process
    try:
        autoreload.start_django(autoreload.get_reloader(), run)
    finally:
        for worker in workers:
            signal.signal(signal.SIGTERM, _ignore)
            signal.signal(signal.SIGINT, lambda signum, frame: os.write(writer, bytes([signum])))
            logger.info("Code changed, or a signal came: finishing what runs.")
            worker.stop()
            while _next_byte(reader):
                worker.hurry()


def _exit_once(signum: int, frame: object) -> None:
    # A second signal comes from the outer process, if the first one went to the whole group.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _ignore)
    sys.exit(0)


def _ignore(signum: int, frame: object) -> None:
    """Do nothing. With SIG_IGN, Python prints a traceback for a signal that came before and was not yet handled."""


EVERY_S = 1.0

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"

SEND_S = 1.0
"""How long a datagram to systemd may take, in seconds."""


class HeartbeatRefused(DelayqError):
    """The path of the heartbeat file can't be used."""


def check_path(path: Path) -> None:
    """Create the heartbeat file with an old time, because the worker counts as alive only after its first claim.

    Raises `HeartbeatRefused`, which names the path and the fix.
    """
    fix = "give --heartbeat-file a file in a directory that this user may write to."
    if path.is_symlink():
        raise HeartbeatRefused(f"The heartbeat file {path} is a link, which may lead to any file; {fix}")
    try:
        _touch(path, (0, 0))
    except OSError as error:
        raise HeartbeatRefused(f"The heartbeat file {path} can't be touched: {error.strerror}; {fix}") from error


def _touch(path: Path, times: tuple[int, int] | None = None) -> None:
    """Set the times of a file, and create it if there is none. It never follows a link, and never waits for a pipe."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    try:
        os.utime(descriptor, times)
    finally:
        os.close(descriptor)


class HeartbeatFile:
    """The giver of a worker's signs of life: at most once a second, it tells systemd and touches `path`, if given."""

    def __init__(self, path: Path | str | None, tell: Callable[[str], None]) -> None:
        self._path = None if path is None else Path(path)
        self._tell = tell
        self._is_ready = False
        self.due_at = 0.0
        self._failing = False

    def beat(self) -> None:
        """Give a sign of life, unless the last one was within a second.

        Call it when the main loop has got an answer from the broker, or waits for slots on schedule.
        """
        if monotonic() < self.due_at:
            return
        self.due_at = monotonic() + EVERY_S
        self._tell(WATCHDOG if self._is_ready else READY)
        self._is_ready = True
        if self._path is not None:
            self._touch(self._path)

    def begin_end(self) -> None:
        """Tell systemd that the worker stops. Until it has stopped, it counts as alive."""
        self._tell(STOPPING)

    def _touch(self, path: Path) -> None:
        try:
            _touch(path)
        except OSError as error:
            if not self._failing:
                logger.error("The heartbeat file %s can't be touched: %s.", path, error.strerror)
            self._failing = True
        else:
            self._failing = False


def teller() -> Callable[[str], None]:
    """Return a function that sends systemd a state, in a datagram as in sd_notify(3).

    It does nothing unless `NOTIFY_SOCKET` names a socket. The variable is removed from the environment, because the
    processes that handlers and workers start are not the service.
    """
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return lambda state: None
    if address.startswith("@"):  # an abstract socket, which is no file
        address = "\0" + address[1:]

    failing = False

    def tell(state: str) -> None:
        nonlocal failing
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.settimeout(SEND_S)
                line.sendto(state.encode(), address)
        except OSError as error:
            if not failing:
                logger.warning("systemd can't be told %s: %s.", state, error.strerror or error)
            failing = True
        else:
            failing = False

    return tell
