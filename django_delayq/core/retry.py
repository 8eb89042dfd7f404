"""Decide how long a message waits after a failure."""

import inspect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django_delayq.support.units import LONGEST_MS, Duration, to_ms
from django_delayq.support.validation import short_repr

Backoff = Duration | Sequence[Duration] | Callable[[int, BaseException], Duration]
"""A fixed wait, one wait per failure (the last repeats), or a function of (attempt, exception)."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """A backoff that grows: `first`, then `factor` times longer after each failure, up to `most`.

    Each wait then varies at random by up to ± `jitter`, a fraction of it. This keeps messages that failed together from
    coming back together. ("Full jitter" would make some waits very short: see AWS Architecture Blog, "Exponential
    Backoff And Jitter".)
    """

    first: Duration = "15s"
    factor: float = 4.0
    most: Duration = "1h"
    jitter: float = 0.1

    def __post_init__(self) -> None:
        to_ms(self.first, "Exponential.first")
        to_ms(self.most, "Exponential.most")
        if not self.factor >= 1:
            raise ValueError(f"Exponential.factor={self.factor!r} must be 1 or more.")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"Exponential.jitter={self.jitter!r} must be from 0 to 1.")

    def __call__(self, attempt: int, exception: BaseException) -> float:
        most = to_ms(self.most, "Exponential.most")
        try:
            growth = min(float(self.factor) ** (attempt - 1), LONGEST_MS)
        except OverflowError:  # such as 4.0 ** 600
            growth = LONGEST_MS
        steady = min(to_ms(self.first, "Exponential.first") * growth, most)
        return max(steady * (1 + random.uniform(-self.jitter, self.jitter)), 0) / 1000


def check_backoff(backoff: Backoff) -> None:
    """Raise `TypeError` or `ValueError`, naming the value, for a backoff that `backoff_ms` could not use."""
    if callable(backoff):
        _check_function(backoff)
        return
    if isinstance(backoff, Sequence) and not isinstance(backoff, str):
        if not backoff:
            raise ValueError("backoff=[] has no waits; give at least one.")
        for wait in backoff:
            to_ms(wait, "backoff")
        return
    to_ms(backoff, "backoff")


def _check_function(backoff: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(backoff)
    except ValueError:
        return  # a function written in C may have no signature
    try:
        signature.bind(1, Exception())
    except TypeError as error:
        raise TypeError(
            f"backoff={short_repr(backoff)} takes {signature}; it must take two positional arguments: "
            "(attempt, exception)."
        ) from error


def backoff_ms(backoff: Backoff, attempt: int, exception: BaseException) -> int:
    """Return the milliseconds to wait after `attempt` (1 for the first) failed with `exception`.

    If `backoff` is a function that raises, or returns no duration, this raises too.
    """
    if callable(backoff):
        return to_ms(backoff(attempt, exception), "backoff")
    if isinstance(backoff, Sequence) and not isinstance(backoff, str):
        return to_ms(backoff[min(attempt, len(backoff)) - 1], "backoff")
    return to_ms(backoff, "backoff")
