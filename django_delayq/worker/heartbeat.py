"""Show that the main loop is alive: by the age of a file, for probes that look at it, and to systemd."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from django_delayq.core.errors import DelayqError
from django_delayq.support.logging import logger

EVERY_S = 1.0

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"

SEND_S = 1.0
"""How long a datagram to systemd may take."""


class HeartbeatRefused(DelayqError):
    """The path of a heartbeat can't be used."""


def check_path(path: Path) -> None:
    """Write the file for the first time, as an old one: the worker is not alive until its first claim.

    Raises `HeartbeatRefused`, which names the path and the fix.
    """
    fix = "give --heartbeat-file a file in a directory that this user may write to."
    if path.is_dir():  # which could be touched
        raise HeartbeatRefused(f"The heartbeat file {path} is a directory; {fix}")
    try:
        path.touch()
        os.utime(path, (0, 0))
    except OSError as error:
        raise HeartbeatRefused(f"The heartbeat file {path} can't be touched: {error.strerror}; {fix}") from error


class Heartbeat:
    """Touches `path`, if there is one, and tells systemd, at most once a second."""

    def __init__(self, path: Path | str | None, tell: Callable[[str], None]) -> None:
        self._path = None if path is None else Path(path)
        self._tell = tell
        self._is_ready = False
        self._next_at = 0.0
        self._failing = False

    def beat(self) -> None:
        """Note that the main loop asked the broker and was answered, or waits for slots on schedule."""
        if monotonic() < self._next_at:
            return
        self._next_at = monotonic() + EVERY_S
        self._tell(WATCHDOG if self._is_ready else READY)
        self._is_ready = True
        if self._path is not None:
            self._touch(self._path)

    def begin_end(self) -> None:
        """Tell systemd that the worker stops. Until it has stopped, it counts as alive."""
        self._tell(STOPPING)

    def _touch(self, path: Path) -> None:
        try:
            path.touch()
        except OSError as error:
            if not self._failing:
                logger.error("The heartbeat file %s can't be touched: %s.", path, error.strerror)
            self._failing = True
        else:
            self._failing = False


def teller() -> Callable[[str], None]:
    """Return a function that tells systemd of the worker's state, by a datagram for each as in sd_notify(3).

    It does nothing unless `NOTIFY_SOCKET` names a socket. The name is taken out of the environment: the
    processes that handlers and children start are not the service.
    """
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return lambda state: None
    if address.startswith("@"):  # a name that is in no directory
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
