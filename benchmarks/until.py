"""Wait until another process has done something."""

import time
from collections.abc import Callable

POLL_S = 0.01


def wait_until(happened: Callable[[], bool], what: str, within_s: float = 60, every_s: float = POLL_S) -> float:
    """Wait until `happened` returns true, and return the monotonic time. Raises `TimeoutError` that names `what`."""
    give_up_at = time.monotonic() + within_s
    while not happened():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"It did not happen within {within_s:g} s: {what}.")
        time.sleep(every_s)
    return time.monotonic()
