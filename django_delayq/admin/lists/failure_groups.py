"""Group failed messages by fingerprint, and show what fails, how often, and since when. A group can be rescued.

The cost is bounded, however many messages there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Count, Max, Min, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_delayq.admin.access import address, alias_of, database_of, redirected_on_outage, render_about
from django_delayq.admin.formatting import instant, listed, now_utc, number
from django_delayq.admin.lists.bounded import TooSlow, say_too_slow, time_limit
from django_delayq.admin.message.errors import may_view_errors
from django_delayq.admin.visibility import sees_all, visible_rows
from django_delayq.models import ErrorMessage
from django_delayq.store.database import Database
from django_delayq.store.queries import union_all
from django_delayq.support.timestamps import HOUR_MS, from_ms, to_epoch_ms

MOST = 100
"""The most groups that are shown: those of the latest failures, and then the first by name."""

LATEST = 2_000
"""How many failures count as the latest."""

HOURS = 24
"""How many hours the sparkline shows."""

COUNTED = 2_000
"""The most failures that are counted of each group."""

HEIGHT = 24
BAR = 4
"""The height of a sparkline, and the width of a bar and its gap."""

DRAWN = 100_000
"""The most failures that are drawn. The groups share them equally, and the newest of each group are drawn."""

# Take the next name of an index, again and again: one probe for each name, however many rows have it.
_NAMES = """
WITH RECURSIVE {column}_names (name, number) AS (
    SELECT min(e.{column}), 1 FROM delayq_error e WHERE e.alias = %s
    UNION ALL
    SELECT (SELECT min(e.{column}) FROM delayq_error e WHERE e.alias = %s AND e.{column} > names.name), number + 1
    FROM {column}_names names WHERE names.name IS NOT NULL AND names.number < %s
)
SELECT '{column}', name FROM {column}_names WHERE name IS NOT NULL
"""
_FINGERPRINTS = _NAMES.format(column="fingerprint")
_NAMED = ("fingerprint", "queue", "key")
_NAMES_OF_ALL = " UNION ALL ".join(
    f"SELECT * FROM ({_NAMES.format(column=column)}) AS of_{column}"  # noqa: S608  constants
    for column in _NAMED
)
_LATEST = """
SELECT fingerprint FROM (
    SELECT fingerprint, ended_at FROM delayq_error WHERE alias = %s ORDER BY ended_at DESC LIMIT %s) AS newest
GROUP BY fingerprint ORDER BY max(ended_at) DESC
"""
_GROUP = """
SELECT {i},
    (SELECT count(*) FROM (SELECT 1 FROM delayq_error WHERE alias = %s AND fingerprint = %s LIMIT %s) AS capped),
    (SELECT min(ended_at) FROM delayq_error WHERE alias = %s AND fingerprint = %s),
    (SELECT max(ended_at) FROM delayq_error WHERE alias = %s AND fingerprint = %s)
"""

_BY_HOUR = """
SELECT {i}, ended_at - %s - (ended_at - %s) %% 3600000 AS since_start_ms, count(*) FROM (
    SELECT ended_at FROM delayq_error WHERE alias = %s AND fingerprint = %s AND ended_at > %s AND ended_at <= %s
    ORDER BY ended_at DESC LIMIT %s) AS newest
GROUP BY since_start_ms
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Failures of one kind. `count` is at most `COUNTED`, and `is_more` says whether there are more."""

    fingerprint: str
    count: int
    is_more: bool
    first: datetime
    last: datetime
    by_hour: Sequence[int]


def names_of_failed(alias: str) -> dict[str, set[str]]:
    """Return the fingerprints, queues and keys of failed messages, at most `MOST` of each, in one statement."""
    names: dict[str, set[str]] = {column: set() for column in _NAMED}
    for column, name in database_of(alias).rows(_NAMES_OF_ALL, [alias, alias, MOST] * len(_NAMED)):
        names[column].add(name)
    return names


def groups(alias: str, now: datetime) -> tuple[list[Group], bool]:
    """Return the groups, the one with the latest failure first, and whether there are more."""
    database = database_of(alias)
    latest = [name for (name,) in database.rows(_LATEST, [alias, LATEST])]
    by_name = [name for _, name in database.rows(_FINGERPRINTS, [alias, alias, MOST + 1])]
    all_names = list(dict.fromkeys([*latest, *by_name]))
    names = all_names[:MOST]
    found = union_all(database, (_GROUP, [(alias, name, COUNTED + 1, alias, name, alias, name) for name in names]))
    by_hour = _by_hour(database, now, names)
    made = []
    for i, count, first, last in found:
        if count:  # otherwise its last message is gone meanwhile
            hours = by_hour.get(names[i], [0] * HOURS)
            is_more = count > COUNTED
            made.append(Group(names[i], min(count, COUNTED), is_more, from_ms(first), from_ms(last), hours))
    return sorted(made, key=lambda group: group.last, reverse=True), len(all_names) > MOST


def groups_of(rows: QuerySet[Any], now: datetime) -> tuple[list[Group], bool]:
    """Return the groups of these rows only, and whether there are more. Raises `TooSlow`, because it reads each row."""
    start = now - timedelta(hours=HOURS)
    counted = rows.order_by().values_list("fingerprint").annotate(Count("pk"), Min("ended_at"), Max("ended_at"))
    latest = rows.filter(ended_at__gt=start, ended_at__lte=now).order_by("-ended_at")
    with time_limit(rows.db):
        found = list(counted.order_by("-ended_at__max")[: MOST + 1])
        ended = list(latest.values_list("fingerprint", "ended_at")[:LATEST])
    by_hour: dict[str, list[int]] = {}
    for name, moment in ended:
        by_hour.setdefault(name, [0] * HOURS)[min((moment - start) // timedelta(hours=1), HOURS - 1)] += 1
    made = [
        Group(name, min(count, COUNTED), count > COUNTED, first, last, by_hour.get(name, [0] * HOURS))
        for name, count, first, last in found[:MOST]
    ]
    return made, len(found) > MOST


def _by_hour(database: Database, now: datetime, names: Sequence[str]) -> dict[str, list[int]]:
    """Return how many failed in each of the last hours, oldest first, by fingerprint.

    It is empty if that takes too long.
    """
    now_ms = to_epoch_ms(now)
    start_ms = now_ms - HOURS * HOUR_MS
    of_each = [(start_ms, start_ms, database.alias, name, start_ms, now_ms, DRAWN // len(names)) for name in names]
    by_hour: dict[str, list[int]] = {}
    try:
        with time_limit(database.using):
            for i, since_start_ms, count in union_all(database, (_BY_HOUR, of_each)):
                by_hour.setdefault(names[i], [0] * HOURS)[min(since_start_ms // HOUR_MS, HOURS - 1)] = count
    except TooSlow:
        return {}
    return by_hour


@dataclass(frozen=True, slots=True)
class Bar:
    """One hour of a sparkline, in the units of its drawing."""

    x: int
    y: int
    height: int


@redirected_on_outage
def groups_page(admin: Any, request: HttpRequest) -> HttpResponse:
    """Render the groups of the alias that the address names."""
    if not (admin.has_view_permission(request) and may_view_errors(request)):
        raise PermissionDenied
    alias = alias_of(request)
    shown_list = partial(address, request, "delayq_errormessage_changelist", alias)
    try:
        found, is_cut = _groups_for(request.user, alias)
    except TooSlow:
        say_too_slow(request)
        return HttpResponseRedirect(shown_list())
    shown = [
        {
            "group": group,
            "number": number(group.count, capped=group.is_more),
            "counts": listed(map(str, group.by_hour)),
            "first": instant(group.first),
            "last": instant(group.last),
            "bars": bars(group.by_hour),
            "address": shown_list(fingerprint=group.fingerprint),
        }
        for group in found
    ]
    return render_about(
        admin,
        request,
        "groups",
        title=_("Failed messages by kind"),
        groups=shown,
        most=len(found) if is_cut else None,
        list_address=shown_list(),
        width=HOURS * BAR,
        height=HEIGHT,
        bar=BAR - 1,
        may_rescue="rescue" in admin.get_actions(request),
    )


def _groups_for(user: Any, alias: str) -> tuple[list[Group], bool]:
    if sees_all(user, alias):
        return groups(alias, now_utc())
    return groups_of(visible_rows(user, ErrorMessage, alias), now_utc())


def bars(by_hour: Sequence[int]) -> list[Bar]:
    """Return a bar for each hour with failures.

    The highest is as high as the drawing, and the lowest can still be seen.
    """
    most = max(by_hour, default=0)
    heights = [0 if not count else max(2, round(count / most * HEIGHT)) for count in by_hour]
    return [Bar(hour * BAR, HEIGHT - height, height) for hour, height in enumerate(heights) if height]
