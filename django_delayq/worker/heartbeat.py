"""A file that shows that the main loop is alive, for liveness probes that look at its age."""

from pathlib import Path
from time import monotonic

from django_delayq.errors import DelayqError
from django_delayq.safe_logs import logger

EVERY_S = 1.0


class HeartbeatRefused(DelayqError):
    """The path of a heartbeat is of no use."""


def check_path(path: Path) -> None:
    """Touch the file for the first time. Raises `HeartbeatRefused`, which names the path and the fix."""
    fix = "give --heartbeat-file a file in a directory that this user may write to."
    if path.is_dir():  # which could be touched
        raise HeartbeatRefused(f"The heartbeat file {path} is a directory; {fix}")
    try:
        path.touch()
    except OSError as error:
        raise HeartbeatRefused(f"The heartbeat file {path} can't be touched: {error.strerror}; {fix}") from error


class Heartbeat:
    """Touches `path` at most once a second; without a path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._next_at = 0.0
        self._failing = False

    def beat(self) -> None:
        """The main loop asked the broker and was answered, or waits for hands on schedule."""
        if self._path is None or monotonic() < self._next_at:
            return
        self._next_at = monotonic() + EVERY_S
        try:
            self._path.touch()
        except OSError as error:
            if not self._failing:
                logger.error("The heartbeat file %s can't be touched: %s.", self._path, error.strerror)
            self._failing = True
        else:
            self._failing = False
