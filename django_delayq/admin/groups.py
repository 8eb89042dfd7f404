"""Failed messages by their fingerprint: what fails, how often, since when. Bounded, however many there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connections

from django_delayq.admin.limits import COUNTED, TooSlow, time_limit
from django_delayq.conf import get_alias
from django_delayq.fields import to_epoch_ms
from django_delayq.message import from_ms

MOST = 100
"""So many groups are shown, the first by their name."""

HOURS = 24
"""The sparkline shows so many."""

# The next fingerprint of the index, again and again: a probe for each, however many rows have it.
_FINGERPRINTS = """
WITH RECURSIVE kinds (fingerprint, number) AS (
    SELECT min(fingerprint), 1 FROM delayq_error WHERE alias = %s
    UNION ALL
    SELECT (SELECT min(e.fingerprint) FROM delayq_error e WHERE e.alias = %s AND e.fingerprint > kinds.fingerprint),
           kinds.number + 1
    FROM kinds WHERE kinds.fingerprint IS NOT NULL AND kinds.number < %s
)
"""
_NAMES = f"{_FINGERPRINTS} SELECT fingerprint FROM kinds WHERE fingerprint IS NOT NULL"  # noqa: S608  constants
_GROUPS = f"""{_FINGERPRINTS}
SELECT fingerprint,
    (SELECT count(*) FROM (
        SELECT 1 FROM delayq_error e WHERE e.alias = %s AND e.fingerprint = kinds.fingerprint LIMIT %s) AS capped),
    (SELECT min(e.ended_at) FROM delayq_error e WHERE e.alias = %s AND e.fingerprint = kinds.fingerprint),
    (SELECT max(e.ended_at) FROM delayq_error e WHERE e.alias = %s AND e.fingerprint = kinds.fingerprint)
FROM kinds WHERE fingerprint IS NOT NULL
"""  # noqa: S608  constants

_HOUR_MS = 3_600_000
_BY_HOUR = """
SELECT fingerprint, ended_at - %s - (ended_at - %s) %% 3600000 AS since_start_ms, count(*)
FROM delayq_error WHERE alias = %s AND ended_at > %s AND ended_at <= %s
GROUP BY fingerprint, since_start_ms
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Failures of one kind. `count` is at most `COUNTED`; `is_more` tells that there are more."""

    fingerprint: str
    count: int
    is_more: bool
    first: datetime
    last: datetime
    by_hour: Sequence[int]


def fingerprints(alias: str) -> list[str]:
    """Each fingerprint there is, at most `MOST`."""
    with connections[get_alias(alias).database].cursor() as cursor:
        cursor.execute(_NAMES, [alias, alias, MOST])
        return [name for (name,) in cursor.fetchall()]


def groups(alias: str, now: datetime) -> list[Group]:
    """The groups, what failed last first."""
    by_hour = _by_hour(alias, now)
    with connections[get_alias(alias).database].cursor() as cursor:
        cursor.execute(_GROUPS, [alias, alias, MOST, alias, COUNTED + 1, alias, alias])
        found = cursor.fetchall()
    made = [
        Group(name, min(count, COUNTED), count > COUNTED, from_ms(first), from_ms(last), by_hour.get(name, [0] * HOURS))
        for name, count, first, last in found
    ]
    return sorted(made, key=lambda group: group.last, reverse=True)


def _by_hour(alias: str, now: datetime) -> dict[str, list[int]]:
    """How many failed in each of the last hours, oldest first; nothing where counting them takes too long."""
    start_ms = to_epoch_ms(now) - HOURS * _HOUR_MS
    using = get_alias(alias).database
    by_hour: dict[str, list[int]] = {}
    try:
        with time_limit(using), connections[using].cursor() as cursor:
            cursor.execute(_BY_HOUR, [start_ms, start_ms, alias, start_ms, to_epoch_ms(now)])
            for name, since_start_ms, count in cursor.fetchall():
                by_hour.setdefault(name, [0] * HOURS)[min(since_start_ms // _HOUR_MS, HOURS - 1)] = count
    except TooSlow:
        return {}
    return by_hour
