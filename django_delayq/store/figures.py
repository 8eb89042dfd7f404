"""The rows of `delayq_figure`: what workers did, by queue and key.

A worker writes a row for each minute. When an hour is long over, the rows of its minutes are rolled up into one for the
hour, and added to the total of the queue and key. A row for an hour is pruned after a month; the total stays, as long
as there is anything new in a month. So each count is in the totals or in the minutes, never in both, and their sum only
grows. More than one row for the same hour, or total, is right too: readers add them up.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import randbits

from django_delayq.core.figures import COUNTS, Figures
from django_delayq.core.requests import Pair
from django_delayq.models import FigureRow
from django_delayq.store.database import Database, marks
from django_delayq.store.sql.selects import Look, union_all
from django_delayq.support.timestamps import DAY_MS, HOUR_MS

KEPT_MS = 30 * DAY_MS
"""How long hours are kept, and the totals of queues and keys of which there is nothing new."""
MINUTES_KEPT_MS = HOUR_MS
"""How long after its end an hour is kept by the minute, for a look at the last hour, and for workers that are late."""
PAGE = 2_000
"""How many rows are rolled up, or pruned, in a transaction."""

MOST_PAIRS = 1_000
"""The most queues and keys that are read."""

Period = FigureRow.Period


_LOCKED = 'SELECT id, at, queue, "key", {counts} FROM delayq_figure r WHERE alias = %s AND period = %s AND {which}'


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time in equal parts."""

    starts_ms: int
    part_ms: int
    parts: int


@dataclass(slots=True)
class Found:
    """What was found: of each span, and how much finished in its parts; by queue and key of the last span, and of ever.

    Parts have the number of the part.
    """

    spans: list[Figures]
    parts: list[dict[int, int]]
    by_pair: dict[Pair, Figures]
    ever: dict[Pair, Figures]


def read(database: Database, spans: Sequence[Span]) -> Found:
    """Read the figures of some spans up to now, each no shorter than the one before, in one statement.

    It reads each row once for all sums, and once more for the parts of each span. The first `MOST_PAIRS` queues and
    keys are told, in the order of their names.
    """
    alias, earliest_ms = database.alias, spans[-1].starts_ms
    sums = ", ".join(f"sum({name}) AS {name}" for name in COUNTS)
    # The first of the spans that a row is in; the number of spans if it is in none.
    first = " ".join(f"WHEN at >= {span.starts_ms} THEN {number}" for number, span in enumerate(spans))
    by_pair = (
        f'SELECT one.* FROM (SELECT period, queue, "key", CASE {first} ELSE {len(spans)} END AS place, {sums}'
        f' FROM delayq_figure WHERE alias = %s AND {{which}} GROUP BY period, queue, "key", CASE {first} ELSE'
        f' {len(spans)} END ORDER BY queue, "key" LIMIT {MOST_PAIRS * (len(spans) + 2)}) AS one'
    )
    looks: list[Look] = [
        (by_pair.format(which=f"period IN ('{Period.MINUTE}', '{Period.TOTAL}')"), [(alias,)]),
        (by_pair.format(which=f"period = '{Period.HOUR}' AND at >= %s"), [(alias, earliest_ms)]),
    ]
    nothing = ", ".join(["0"] * (len(COUNTS) - 1))
    for number, span in enumerate(spans):
        part = f"at - (at - {span.starts_ms}) %% {span.part_ms}"
        sql = (
            f"SELECT '{number}', '', '', {part}, sum(finished), {nothing} FROM delayq_figure WHERE alias = %s"
            f" AND period IN ('{Period.MINUTE}', '{Period.HOUR}') AND at >= %s GROUP BY {part}"
        )
        looks.append((sql, [(alias, span.starts_ms)]))
    parts: list[dict[int, int]] = [{} for _ in spans]
    of_spans: list[list[Figures]] = [[] for _ in spans]
    of_pairs, of_ever = defaultdict[Pair, list[Figures]](list), defaultdict[Pair, list[Figures]](list)
    for period, queue, key, place, *counts in union_all(database, *looks):
        if period.isdigit():
            span = spans[int(period)]
            parts[int(period)][(int(place) - span.starts_ms) // span.part_ms] = int(counts[0])
            continue
        figures = Figures(map(int, counts))
        if period != Period.HOUR:
            of_ever[queue, key].append(figures)
        if period != Period.TOTAL and place < len(spans):
            of_pairs[queue, key].append(figures)
            for number in range(int(place), len(spans)):
                of_spans[number].append(figures)
    return Found([Figures.sum(each) for each in of_spans], parts, _first(of_pairs), _first(of_ever))


def _first(of_pairs: Mapping[Pair, Sequence[Figures]]) -> dict[Pair, Figures]:
    return {pair: Figures.sum(of_pairs[pair]) for pair in sorted(of_pairs)[:MOST_PAIRS]}


def write(database: Database, rows: Sequence[FigureRow]) -> None:
    """Insert rows, apart from those that are there already."""
    FigureRow.objects.using(database.using).bulk_create(rows, ignore_conflicts=True)


def roll_up(database: Database, now_ms: int) -> int:
    """Add a page of minutes to the rows of their hours and to the totals. Return how many; 0 when none is left."""
    before_ms = now_ms - now_ms % HOUR_MS - MINUTES_KEPT_MS
    return database.transaction(partial(_roll_up_page, database, before_ms))


def prune(database: Database, now_ms: int) -> int:
    """Remove a page of the hours, and of the totals, that are too old. Return how many; 0 when none is left."""
    return database.transaction(partial(_prune_page, database, now_ms - KEPT_MS))


def _roll_up_page(database: Database, before_ms: int) -> int:
    minutes = list(_locked(database, Period.MINUTE, "at < %s", [before_ms]))
    if not minutes:
        return 0
    hours_ms = sorted({at_ms - at_ms % HOUR_MS for _, at_ms, _, _ in minutes})
    hours = list(_locked(database, Period.HOUR, f"at IN ({marks(len(hours_ms))})", hours_ms))
    pairs = {pair for _, _, pair, _ in minutes}
    keys = sorted({key for _, key in pairs})
    of_keys = _locked(database, Period.TOTAL, f'"key" IN ({marks(len(keys))})', keys)
    totals = [row for row in of_keys if row[2] in pairs]
    of_hours, of_totals = defaultdict(list), defaultdict(list)
    last_ms: dict[Pair, int] = defaultdict(int)
    for _, at_ms, pair, counts in [*minutes, *hours]:
        of_hours[at_ms - at_ms % HOUR_MS, pair].append(counts)
    for _, at_ms, pair, counts in [*minutes, *totals]:
        of_totals[pair].append(counts)
        last_ms[pair] = max(last_ms[pair], at_ms)
    _delete(database, [pk for pk, *_ in (*minutes, *hours, *totals)])
    write(database, [_row(database, Period.HOUR, at_ms, pair, each) for (at_ms, pair), each in of_hours.items()])
    write(database, [_row(database, Period.TOTAL, last_ms[pair], pair, each) for pair, each in of_totals.items()])
    return len(minutes)


def _prune_page(database: Database, before_ms: int) -> int:
    periods = (Period.HOUR, Period.TOTAL)
    pks = [pk for period in periods for pk, *_ in _locked(database, period, "at < %s", [before_ms])]
    _delete(database, pks)
    return len(pks)


def _locked(
    database: Database, period: Period, which: str, values: Sequence[int | str]
) -> Iterator[tuple[int, int, Pair, Figures]]:
    """Yield a page of rows: pk, epoch ms, queue and key, counts. What another rolls up or prunes now is left to it."""
    sql = _LOCKED.format(counts=", ".join(COUNTS), which=which)
    locked = f"{sql} ORDER BY at LIMIT {PAGE}{database.dialect.skip_locked}"
    for pk, at_ms, queue, key, *counts in database.rows(locked, [database.alias, period, *values]):
        yield pk, at_ms, (queue, key), Figures(counts)


def _delete(database: Database, pks: Sequence[int]) -> None:
    if pks:
        FigureRow.objects.using(database.using).filter(pk__in=pks).delete()


def _row(database: Database, period: Period, at_ms: int, pair: Pair, all_counts: Sequence[Figures]) -> FigureRow:
    queue, key = pair
    counts = dict(zip(COUNTS, Figures.sum(all_counts), strict=True))
    return FigureRow(id=randbits(63), alias=database.alias, period=period, at=at_ms, queue=queue, key=key, **counts)
