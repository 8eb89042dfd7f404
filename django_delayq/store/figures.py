"""The rows of `delayq_figure`: what workers did, by queue and key.

A worker writes a row a minute for each queue and key. Some minutes later these new rows are rolled up: they are added
to the rows of their minute (all queues and keys together), of their hour and day, and to the total of their queue and
key, and then deleted. So each count is either in a new row, or in one row of each other period, and the sum of totals
and new rows only grows.
"""

from collections.abc import Sequence
from functools import partial
from secrets import randbits
from typing import NamedTuple

from django_delayq.core.figures import COUNTS, MINUTE_MS, MOST_PAIRS, OTHERS, Figures
from django_delayq.core.requests import Pair
from django_delayq.models import FigureRow
from django_delayq.store.database import Database
from django_delayq.store.queries import union_all
from django_delayq.store.sql.dialect import Sql
from django_delayq.store.sql.stepwise import delete
from django_delayq.support.timestamps import DAY_MS, HOUR_MS

Period = FigureRow.Period

KEPT_MS = {Period.MINUTE: 2 * HOUR_MS, Period.HOUR: 2 * DAY_MS, Period.DAY: 30 * DAY_MS, Period.TOTAL: 30 * DAY_MS}
"""How long a row is kept after its period began; a total, after the last minute that was added to it."""
NEW_MS = 3 * MINUTE_MS
"""How long after its end a minute is left alone: a worker may not have written it yet, or may write it again."""
PAGE = 2_000
"""How many rows one transaction rolls up or prunes."""

_SUMS = ", ".join(f"sum({name}) AS {name}" for name in COUNTS)
_PAIR = 'queue, "key"'
_HOUR, _DAY = (f"at - at %% {length_ms}, {_PAIR}" for length_ms in (HOUR_MS, DAY_MS))
_ROLLED_UP = {  # when a row begins, its queue and key; what its sum is grouped by; how long its period is
    Period.MINUTE: ("at, '', ''", "at", MINUTE_MS),
    Period.HOUR: (_HOUR, _HOUR, HOUR_MS),
    Period.DAY: (_DAY, _DAY, DAY_MS),
    Period.TOTAL: (f"max(at), {_PAIR}", _PAIR, 2**62),
}


class Asked(NamedTuple):
    """A request for sums of a period's rows and the new rows: by queue and key, or by parts of time of `part_ms`."""

    period: Period
    since_ms: int
    part_ms: int | None = None


Found = list[tuple[int, Pair, Figures]]
"""Sums, each with a number, its queue and key (both "" if sums are by parts of the time), and the counts.

By parts of the time, the number is when the part begins. By queue and key, it is 1 if all of the sum is in new rows,
and otherwise 0.
"""


def read(database: Database, all_asked: Sequence[Asked]) -> list[Found]:
    """Return the sums for each request, by one statement.

    At most `MOST_PAIRS` queues and keys are named; the rest is one sum.
    """
    selects = [(_select(number, asked), [(database.alias, asked.since_ms)]) for number, asked in enumerate(all_asked)]
    found: list[Found] = [[] for _ in all_asked]
    for number, place, queue, key, *counts in union_all(database, *selects):
        found[int(number)].append((int(place), (queue, key), Figures(map(int, counts))))
    return [each if asked.part_ms else _named(each) for asked, each in zip(all_asked, found, strict=True)]


def _select(number: int, asked: Asked) -> str:
    if asked.part_ms:
        place = by = f"at - (at - {asked.since_ms}) %% {asked.part_ms}"
        pair = "'', ''"
    else:
        place, pair = f"min(CASE period WHEN '{Period.NEW}' THEN 1 ELSE 0 END)", 'queue, "key"'
        by = pair
    return (
        f"SELECT {number}, {place}, {pair}, {_SUMS} FROM delayq_figure"
        f" WHERE alias = %s AND period IN ('{Period.NEW}', '{asked.period}') AND at >= %s GROUP BY {by}"
    )


def _named(found: Found) -> Found:
    """Return the sums of the first queues and keys, and one of all others. Pairs that have only new rows come last."""
    found.sort(key=lambda one: (one[1] == OTHERS, *one[:2]))
    named, others = found[:MOST_PAIRS], found[MOST_PAIRS:]
    if others:
        figures = Figures.sum(figures for _, _, figures in others)
        named.append((0, OTHERS, figures))
    return named


def write(database: Database, rows: Sequence[FigureRow]) -> None:
    """Insert new rows, except those that are there already."""
    FigureRow.objects.using(database.using).bulk_create(rows, ignore_conflicts=True)


def roll_up(database: Database, now_ms: int) -> int:
    """Roll up a page of new rows. If there are any, also remove up to a page of outdated rows of each other period.

    Return how many were rolled up. The new rows of the last minutes are left alone. Do nothing while another worker
    rolls up.
    """
    return database.transaction(partial(_roll_up_page, database, now_ms - now_ms % MINUTE_MS - NEW_MS))


def _roll_up_page(database: Database, before_ms: int) -> int:
    new = _locked(database, Period.NEW, before_ms=before_ms)
    totals = _locked(database, Period.TOTAL) if new else []
    if not new or len(totals) < _number_of_totals(database):  # another worker has locked the rest
        return 0
    _join_others(database, totals, new)
    for period, (columns, by, length_ms) in _ROLLED_UP.items():
        there = _locked(database, period, new[0].at_ms - new[0].at_ms % length_ms)
        _add_up(database, period, columns, by, [*new, *there])
        _drop(database, there)
        _drop(database, _locked(database, period, before_ms=before_ms - KEPT_MS[period]))
    _drop(database, new)
    return len(new)


class _Row(NamedTuple):
    pk: int
    at_ms: int
    queue: str
    key: str


def _locked(database: Database, period: Period, since_ms: int = 0, before_ms: int = 2**62) -> list[_Row]:
    """Lock and return a page of rows, earliest first, without those that another transaction has locked."""
    rows = database.rows(
        'SELECT r.id, r.at, r.queue, r."key" FROM delayq_figure r WHERE r.alias = %s AND r.period = %s AND r.at >= %s'
        f" AND r.at < %s ORDER BY r.at LIMIT {PAGE}{database.dialect.skip_locked}",
        [database.alias, period, since_ms, before_ms],
    )
    return [_Row(*row) for row in rows]


def _number_of_totals(database: Database) -> int:
    ((number,),) = database.rows(
        "SELECT count(*) FROM delayq_figure WHERE alias = %s AND period = %s", [database.alias, Period.TOTAL]
    )
    return int(number)


def _join_others(database: Database, totals: Sequence[_Row], new: Sequence[_Row]) -> None:
    """Rename the rows of all but the first `MOST_PAIRS` queues and keys to `OTHERS`.

    Queues and keys that have a total come first.
    """
    rows = [*totals, *new]
    named = set(list(dict.fromkeys([OTHERS, *((row.queue, row.key) for row in rows)]))[: MOST_PAIRS + 1])
    nameless = [row for row in rows if (row.queue, row.key) not in named]
    if nameless:
        which = _which(database, nameless)
        database.changed(
            f'UPDATE delayq_figure SET queue = %s, "key" = %s WHERE {which.text}', [*OTHERS, *which.parameters]
        )


def _add_up(database: Database, period: Period, columns: str, by: str, rows: Sequence[_Row]) -> None:
    """Insert the sums of rows as rows of a period."""
    which = _which(database, rows)
    database.changed(
        f'INSERT INTO delayq_figure (id, alias, period, at, queue, "key", {", ".join(COUNTS)})'
        f" SELECT {randbits(62)} + row_number() OVER (ORDER BY min(id)), %s, %s, {columns}, {_SUMS} FROM delayq_figure"
        f" WHERE {which.text} GROUP BY {by}",
        [database.alias, period, *which.parameters],
    )


def _drop(database: Database, rows: Sequence[_Row]) -> None:
    delete(database, [row.pk for row in rows], "delayq_figure")


def _which(database: Database, rows: Sequence[_Row]) -> Sql:
    return database.dialect.among("id", [row.pk for row in rows])
