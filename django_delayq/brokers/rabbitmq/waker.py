"""End a sleep on a socket from another thread."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Waker:
    """A pipe while a thread sleeps, and a mark for the next sleep while none does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writer: int | None = None
        self._woken = False

    @contextmanager
    def listening(self) -> Iterator[int]:
        """Yield a descriptor that can be read once `wake` is called; at once if it was since the last sleep."""
        reader, writer = os.pipe()
        with self._lock:
            self._writer = writer
            if self._woken:
                os.write(writer, b"\0")
        try:
            yield reader
        finally:
            with self._lock:
                self._writer, self._woken = None, False
            os.close(reader)
            os.close(writer)

    def wake(self) -> None:
        """End the running or the next sleep."""
        with self._lock:
            if self._writer is not None and not self._woken:
                os.write(self._writer, b"\0")
            self._woken = True
