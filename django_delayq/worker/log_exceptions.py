"""Guard threads that must outlive any single error."""

from collections.abc import Callable
from typing import TypeVar

from django_delayq.support.logging import logger

Result = TypeVar("Result")


def guarded(work: Callable[[], Result]) -> Result | None:
    """Return the result of `work`; None when it raised, which is logged."""
    try:
        return work()
    except Exception:
        logger.exception("Something went wrong in a thread of the worker; it goes on.")
        return None
