"""A file that shows that the main loop is alive, for liveness probes that look at its age."""

import logging
from pathlib import Path
from time import monotonic

EVERY_S = 1.0

_logger = logging.getLogger("django_delayq")


class Heartbeat:
    """Touches `path` at most once a second; without a path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._next_at = 0.0

    def beat(self) -> None:
        """The main loop asked the broker and was answered, or waits for hands on schedule."""
        if self._path is None or monotonic() < self._next_at:
            return
        self._next_at = monotonic() + EVERY_S
        try:
            self._path.touch()
        except OSError as error:
            _logger.error("The heartbeat file %s can't be touched: %s.", self._path, error.strerror)
