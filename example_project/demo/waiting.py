"""Wait until other processes have done something."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NotInTime(Exception):
    """An error: something that the demo waits for did not happen in time."""


def wait_for(what: str, look: Callable[[], T | None], seconds: float = 30) -> T:
    """Return the result of `look` as soon as it is true; raise `NotInTime` after `seconds`."""
    end = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > end:
            raise NotInTime(f"The demo waited {seconds:g} s for {what}, in vain. The workers' logs are in var/demo.")
        time.sleep(0.05)
    return seen
