"""What a list can be narrowed to: a condition for each parameter of its address. Pure, so that a job can repeat it."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from django.db.models import Q

RANGES = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
"""How far the lists look ahead of now, or back."""

_CLOCKS_APART = timedelta(minutes=1)

MANY = 3
"""From so many failures on, messages are shown as one group."""


def condition(parameter: str, value: str, now: datetime) -> Q:
    """The rows that `parameter=value` asks for. Raises `ValueError` for a value that there is not."""
    try:
        return _CONDITIONS[parameter](value, now)
    except KeyError as error:
        raise ValueError(f"{parameter}={value!r} is no condition.") from error


def now_utc() -> datetime:
    """This machine's clock, aware whatever USE_TZ says. The lists only show by it; rows are moved by the database's."""
    return datetime.now(UTC)


def held(now: datetime) -> Q:
    """Rows that a worker holds."""
    # What runs was due by the database's clock: an index finds that, and then few rows are left.
    return Q(lease_until__gt=now, due_at__lte=now + _CLOCKS_APART)


def _free(now: datetime) -> Q:
    return Q(lease_until__isnull=True) | Q(lease_until__lte=now)


def _state(value: str, now: datetime) -> Q:
    states = {
        "pending": _free(now) & Q(due_at__gt=now),
        "ready": _free(now) & Q(due_at__lte=now),
        "running": held(now),
    }
    return states[value]


def _due(value: str, now: datetime) -> Q:
    if value == "overdue":
        return Q(due_at__lte=now)
    return Q(due_at__gt=now, due_at__lte=now + RANGES[value])


def _ended(value: str, now: datetime) -> Q:
    return Q(ended_at__gt=now - RANGES[value])


def _failures(value: str, now: datetime) -> Q:
    if value == "any":
        return Q(failures__gt=0)
    return Q(failures__gte=MANY) if value == str(MANY) else Q(failures=int(value))


def _is(field: str) -> Callable[[str, datetime], Q]:
    return lambda value, now: Q(**{field: value})


_CONDITIONS: Mapping[str, Callable[[str, datetime], Q]] = {
    "queue": _is("queue"),
    "key": _is("key"),
    "outcome": _is("outcome"),
    "fingerprint": _is("fingerprint"),
    "state": _state,
    "due": _due,
    "ended": _ended,
    "failures": _failures,
}
