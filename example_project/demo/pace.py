"""How fast the demo plays. No clock is faked: delays are shortened before anything is sent."""

from datetime import timedelta

DAY = timedelta(seconds=2)
"""How long a day of the shop lasts in the demo."""


def shorten(real: timedelta) -> timedelta:
    """A length of time of the shop, as long as the demo makes it."""
    return real * (DAY / timedelta(days=1))
