"""Keep the figures for some seconds, for pages that strangers and scrapers may ask for as often as they like."""

import os
import threading
import time
from collections import defaultdict

from django.core.signals import setting_changed
from django.db import DatabaseError

from django_delayq.core.errors import DelayqError
from django_delayq.monitor.looking import closed_after
from django_delayq.monitor.status import Status, status

KEEP_S = 5.0
"""Seconds for which a process keeps the figures of an alias, or the error that it got instead."""
PATIENCE_S = 1.0
"""Seconds to wait for the broker."""


class _Kept:
    """The figures of one alias. A caller that comes while they are being read waits, and gets the same figures."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: Status | DelayqError | DatabaseError | None = None
        self._until = 0.0

    def get(self, using: str) -> Status | DelayqError | DatabaseError:
        """Return the figures, or the error that reading them raised."""
        with self._lock:
            if self._found is None or time.monotonic() >= self._until:
                self._found = _read(using)
                self._until = time.monotonic() + KEEP_S
            return self._found


_kept: defaultdict[str, _Kept] = defaultdict(_Kept)


def kept_status(using: str) -> Status:
    """Return an alias's figures, at most `KEEP_S` seconds old. Raises what `status` raises, or `DatabaseError`."""
    found = _kept[using].get(using)
    if isinstance(found, Exception):
        raise found.with_traceback(None)
    return found


def _read(using: str) -> Status | DelayqError | DatabaseError:
    try:
        with closed_after(using):  # whoever asks may do so in a thread that ends
            return status(using, patience_s=PATIENCE_S)
    except (DelayqError, DatabaseError) as error:
        return error


def forget() -> None:
    """Forget all figures, so that the next call reads them again."""
    _kept.clear()


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting == "DELAYQ":
        forget()


os.register_at_fork(after_in_child=forget)  # another thread of the parent may hold a lock
setting_changed.connect(_forget, dispatch_uid="delayq.kept")
