"""For threads that must outlive whatever goes wrong once."""

import contextlib
import logging
from collections.abc import Callable
from typing import TypeVar

_logger = logging.getLogger("django_delayq")
Result = TypeVar("Result")


def guarded(work: Callable[[], Result]) -> Result | None:
    """What some work gives; None when it raised, which is logged."""
    try:
        return work()
    except Exception:
        with contextlib.suppress(Exception):  # a logging filter of the site's may raise
            _logger.exception("Something went wrong in a thread of the worker; it goes on.")
        return None
