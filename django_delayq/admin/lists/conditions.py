"""The conditions that narrow a list, one for each parameter of its address.

They are pure, so that a job can repeat them.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

RANGES = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
"""How far the lists look ahead of now, or back."""

_CLOCKS_APART = timedelta(minutes=1)

NUL = "\0"
"""The character that no text of a row has: names have no control characters, and PostgreSQL refuses it."""

MANY = 3
"""Messages with this many failed attempts, or more, are one choice of the filter."""


def condition(parameter: str, value: str, now: datetime) -> Q:
    """Return the condition on rows that `parameter=value` asks for. Raises `ValueError` if there is no such value."""
    try:
        return _CONDITIONS[parameter](value, now)
    except KeyError as error:
        raise ValueError(f"{parameter}={value!r} is no condition.") from error


def is_condition(parameter: str) -> bool:
    """Return whether a parameter of an address is a condition on rows."""
    return parameter in _CONDITIONS


def asked(address: Mapping[str, str]) -> dict[str, str]:
    """Return the conditions in the parameters of an address, in a form that means the same everywhere.

    People write instants in the viewer's zone. Here they are in UTC.
    """
    given = {name: value for name, value in address.items() if name in _CONDITIONS}
    instants = {name: instant_of(value).isoformat() for name, value in given.items() if name in _INSTANTS and value}
    return {name: value for name, value in given.items() if name not in _INSTANTS} | instants


def instant_of(text: str) -> datetime:
    """Return the instant that a person wrote, in the viewer's zone unless it names its own. Raises `ValueError`."""
    try:
        instant = datetime.fromisoformat(text.strip())
        return (instant if timezone.is_aware(instant) else timezone.make_aware(instant)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        example = "2026-11-21 08:00"
        raise ValueError(
            _("%(value)s is no date and time; write it like %(example)s.") % {"value": repr(text), "example": example}
        ) from error


def now_utc() -> datetime:
    """Return this machine's time, aware whatever USE_TZ says. Only for display: moves go by the database's clock."""
    return datetime.now(UTC)


def held(now: datetime) -> Q:
    """Return the condition for rows that a worker holds, or held when it died.

    No move takes them until they are reclaimed.
    """
    # A row that runs was due by the database's clock. An index finds those, and leaves few rows to look at.
    return Q(token__isnull=False) & Q(due_at__lte=now + _CLOCKS_APART)


_FREE = Q(token__isnull=True)


def _state(value: str, now: datetime) -> Q:
    states = {
        "pending": _FREE & Q(due_at__gt=now),
        "ready": _FREE & Q(due_at__lte=now),
        "running": held(now),
    }
    return states[value]


def _due(value: str, now: datetime) -> Q:
    if value == "overdue":
        return Q(due_at__lte=now)
    return Q(due_at__gt=now, due_at__lte=now + RANGES[value])


def _since(field: str) -> Callable[[str, datetime], Q]:
    return lambda value, now: Q(**{f"{field}__gte": instant_of(value)})


def _before(field: str) -> Callable[[str, datetime], Q]:
    return lambda value, now: Q(**{f"{field}__lt": instant_of(value)})


def _ended(value: str, now: datetime) -> Q:
    return Q(ended_at__gt=now - RANGES[value])


def _failures(value: str, now: datetime) -> Q:
    if value == "any":
        return Q(failures__gt=0)
    return Q(failures__gte=MANY) if value == str(MANY) else Q(failures=int(value))


def _is(field: str) -> Callable[[str, datetime], Q]:
    def condition(value: str, now: datetime) -> Q:
        if NUL in value:
            raise ValueError(f"{field}={value!r} can't be: no row has that character, and PostgreSQL refuses it.")
        return Q(**{field: value})

    return condition


_INSTANTS: Mapping[str, Callable[[str, datetime], Q]] = {
    "due_from": _since("due_at"),
    "due_until": _before("due_at"),
    "ended_from": _since("ended_at"),
    "ended_until": _before("ended_at"),
}
_CONDITIONS: Mapping[str, Callable[[str, datetime], Q]] = {
    **_INSTANTS,
    "queue": _is("queue"),
    "key": _is("key"),
    "outcome": _is("outcome"),
    "fingerprint": _is("fingerprint"),
    "state": _state,
    "due": _due,
    "ended": _ended,
    "failures": _failures,
}
