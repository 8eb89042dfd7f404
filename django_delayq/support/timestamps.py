"""Convert times between epoch milliseconds and aware datetimes."""

import time
from datetime import UTC, datetime, timedelta

from django_delayq.support.units import LONGEST_MS
from django_delayq.support.validation import short_repr

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LAST_MS = 253_402_300_799_999
"""The end of the year 9999, which is the last time that a datetime can have."""


def from_ms(milliseconds: int) -> datetime:
    """Return epoch milliseconds as an aware UTC datetime."""
    return EPOCH + timedelta(milliseconds=milliseconds)


def to_epoch_ms(instant: datetime) -> int:
    """Return the epoch milliseconds of an aware datetime, rounded down."""
    return (instant - EPOCH) // timedelta(milliseconds=1)


def check_aware(at: datetime, name: str) -> datetime:
    """Return `at` unchanged. Raises `TypeError` if it is no datetime, `ValueError` if it has no time zone."""
    if not isinstance(at, datetime):
        raise TypeError(f"{name}={short_repr(at)} is {type(at).__name__}; give an aware datetime.")
    if at.utcoffset() is None:
        raise ValueError(f"{name}={at!r} is naive; give django.utils.timezone.make_aware(at).")
    return at


_FIRST, _LAST = datetime(1900, 1, 1, tzinfo=UTC), datetime(9500, 1, 1, tzinfo=UTC)


def check_instant(at: datetime, name: str) -> datetime:
    """Return an aware datetime in UTC. Raises `TypeError` or `ValueError`, also if it is too near to an end of time."""
    if not _FIRST <= check_aware(at, name) < _LAST:
        raise ValueError(f"{name}={at} is no time from 1900 to 9500; give another one.")
    return at.astimezone(UTC)


def due_time_ms(at: datetime) -> int:
    """Return the epoch milliseconds of an aware datetime, rounded up, so that nothing is early.

    Raises `ValueError` for a time over 100 years from now.
    """
    milliseconds = -((at - EPOCH) // timedelta(microseconds=-1000))
    if milliseconds > wall_clock_ms() + LONGEST_MS:
        raise ValueError(f"at={at} is over 100 years from now; give an earlier time.")
    return milliseconds


def wall_clock_ms() -> int:
    """Return the time by this machine's clock, in epoch milliseconds. It never decides whether a message is due."""
    return time.time_ns() // 1_000_000
