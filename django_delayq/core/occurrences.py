"""Name the message of each occurrence of a schedule, and read the name. Pure: no Django, no I/O.

An occurrence of a rule in a zone is a local time, and its id has that local time and the zone:
`report@2026-11-30T09:00:00[Europe/Rome]`, in the form of RFC 9557 without the offset. So it has the same id wherever a
change of the time-zone database moves that local time to. Other occurrences are instants: `ping@2026-11-30T08:00:00Z`.
"""

import re
from contextlib import suppress
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from django_delayq.core.human_time import instant_of, zone_of
from django_delayq.support.validation import MAX_NAME, short_repr

_ID = re.compile(r"(.+)@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:Z|\[([\w+\-/]+)\])", re.DOTALL | re.ASCII)
MOST_SCHEDULE_NAME = MAX_NAME - len("@2026-01-01T00:00:00[America/Argentina/ComodRivadavia]")
"""The most characters of a schedule's name. No zone has a longer name than that one."""


def check_schedule_name(name: str, kind: str) -> str:
    """Return a name unchanged. Raises `ValueError`, naming the value and the fix, if no id has room for it."""
    if len(name) > MOST_SCHEDULE_NAME:
        raise ValueError(
            f"{kind}={short_repr(name)} has {len(name)} characters; give a schedule at most {MOST_SCHEDULE_NAME}, "
            "because each id adds the time and its zone."
        )
    return name


def occurrence_id(name: str, at: datetime, zone: str | ZoneInfo | None) -> str:
    """Return the id of the message of an occurrence of the schedule with this name, whose rule is in a zone or in none.

    An instant at which the clocks of the zone show a local time for the second time is no local time of a rule.
    """
    local = None if zone is None else at.astimezone(zone_of(zone))
    if local is None or local.fold:
        return f"{name}@{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}Z"
    return f"{name}@{local:%Y-%m-%dT%H:%M:%S}[{zone}]"


def schedule_of(id: str) -> str | None:
    """Return the name of the schedule that an id tells of; None if it is no such id. Its zone may be unknown here."""
    match = _match(id)
    return None if match is None else match[1]


def occurrence_of(id: str) -> tuple[str, datetime] | None:
    """Return the name of the schedule and the occurrence, as an instant, that an id tells of; None if it tells of none.

    A local time is the instant that it has by the time-zone database of this process. If that lacks the zone, the id
    tells of none.
    """
    match = _match(id)
    if match is None:
        return None
    name, time, zone = match.groups()
    with suppress(ValueError, OverflowError):  # 30 February, an unknown zone, or the year 1 in Asia
        local = datetime.fromisoformat(time)
        return name, local.replace(tzinfo=UTC) if zone is None else instant_of(local, zone)
    return None


def local_time_of(id: str) -> tuple[datetime, str] | None:
    """Return the local time and the name of the zone that an id tells of; None if it tells of an instant, or of none.

    Raises `ValueError` if there is no such day or time.
    """
    match = _match(id)
    return None if match is None or match[3] is None else (datetime.fromisoformat(match[2]), match[3])


def instant_now(id: str, put_for: datetime) -> datetime:
    """Return when an occurrence that was put for the instant `put_for` is by the time-zone database of this process."""
    found = occurrence_of(id)
    return put_for if found is None or found[1] == put_for.replace(microsecond=0) else found[1]


def in_form_of(id: str, name: str, at: datetime) -> str:
    """Return the id of an occurrence as it would be if the rule was in the zone of another occurrence's id, or in none.

    So an occurrence is known again whose rule was in another zone, or had another name for its zone.
    """
    match = _match(id)
    with suppress(ValueError):  # it is unknown here
        return occurrence_id(name, at, match and match[3])
    return occurrence_id(name, at, None)


def _match(id: str) -> re.Match[str] | None:
    return _ID.fullmatch(id) if id.endswith(("Z", "]")) else None
