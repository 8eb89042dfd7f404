"""`delay` and `at`, as a caller gives them, into milliseconds."""

from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from django_delayq.durations import LONGEST_MS, Duration, to_ms
from django_delayq.instants import EPOCH, wall_clock_ms
from django_delayq.values import shown


def due_ms(delay: Duration | None, at: datetime | None) -> tuple[int, int | None]:
    """Milliseconds from now, and the instant in epoch milliseconds that overrides them when `at` was given.

    Raises `TypeError` or `ValueError` naming the value and the fix.
    """
    if at is None:
        return (0 if delay is None else to_ms(delay, "delay")), None
    if delay is not None:
        raise TypeError(f"delay={shown(delay)} and at={shown(at)} are both given; give one of them.")
    return 0, _instant_ms(at)


def _instant_ms(at: datetime) -> int:
    if not isinstance(at, datetime):
        raise TypeError(f"at={shown(at)} is {type(at).__name__}; give an aware datetime.")
    if timezone.is_naive(at):
        if settings.USE_TZ:
            raise ValueError(f"at={at!r} is naive; give django.utils.timezone.make_aware(at).")
        at = timezone.make_aware(at, timezone.get_default_timezone())
    milliseconds = -((at - EPOCH) // timedelta(microseconds=-1000))  # rounded up: never early
    if milliseconds > wall_clock_ms() + LONGEST_MS:
        raise ValueError(f"at={at!r} is over 100 years from now; give an earlier time.")
    return milliseconds
