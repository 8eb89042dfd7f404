"""Name the message of each occurrence of a schedule, and read the name. Pure: no Django, no I/O."""

import re
from contextlib import suppress
from datetime import UTC, datetime

from django_delayq.support.validation import MAX_NAME, short_repr

_ID = re.compile(r"(.+)@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)Z", re.DOTALL | re.ASCII)
MOST_SCHEDULE_NAME = MAX_NAME - len("@2026-01-01T00:00:00Z")


def check_schedule_name(name: str, kind: str) -> str:
    """Return a name unchanged. Raises `ValueError`, naming the value and the fix, if no id has room for it."""
    if len(name) > MOST_SCHEDULE_NAME:
        raise ValueError(
            f"{kind}={short_repr(name)} has {len(name)} characters; give a schedule at most {MOST_SCHEDULE_NAME}, "
            "because each id adds the time."
        )
    return name


def occurrence_id(name: str, at: datetime) -> str:
    """Return the id of the message of an occurrence of the schedule with this name."""
    return f"{name}@{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}Z"


def occurrence_of(id: str) -> tuple[str, datetime] | None:
    """Return the name of the schedule and the occurrence that an id tells of; None if it is no such id."""
    match = _ID.fullmatch(id) if id.endswith("Z") else None
    if match is None:
        return None
    with suppress(ValueError):  # 30 February
        return match[1], datetime.fromisoformat(f"{match[2]}+00:00")
    return None
