"""The pace of the demo. No clock is faked: delays are shortened before anything is sent."""

from datetime import timedelta

DAY = timedelta(seconds=2)
"""How long a day of the shop lasts in the demo."""


def shorten(real: timedelta) -> timedelta:
    """Return a length of time of the shop at the demo's pace."""
    return real * (DAY / timedelta(days=1))
