"""Show that the main loop is alive: by the age of a file, for probes that look at it, and to systemd."""

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from django_delayq.core.errors import DelayqError
from django_delayq.support.logging import logger
from django_delayq.worker.systemd import READY, STOPPING, WATCHDOG

EVERY_S = 1.0


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
