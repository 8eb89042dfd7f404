"""For threads that must outlive whatever goes wrong once."""

from collections.abc import Callable
from typing import TypeVar

from django_delayq.support.logging import logger

Result = TypeVar("Result")


def guarded(work: Callable[[], Result]) -> Result | None:
    """What some work gives; None when it raised, which is logged."""
    try:
        return work()
    except Exception:
        logger.exception("Something went wrong in a thread of the worker; it goes on.")
        return None
