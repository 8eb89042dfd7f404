"""Count what waits, runs and has failed, quickly however large the tables are.

What would take long to count is counted only in part.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, timedelta, tzinfo
from typing import Any, NamedTuple

from django_delayq.brokers.base import Counts, SetCount, earliest
from django_delayq.core.requests import Pair
from django_delayq.core.transitions import SUSPECT_CRASHES
from django_delayq.store.database import Database
from django_delayq.store.queries import of_each_pair, waiting_pairs
from django_delayq.store.sql.dialect import WAITING, Row, Sql
from django_delayq.support.timestamps import HOUR_MS, from_ms

HOURS = 12
"""For how many hours, from the current one on, the messages that fall due are counted by the hour."""

AHEAD_MS = HOUR_MS // 4
"""For how long from now the messages that fall due are counted apart."""

MOST = 10_000
"""The most failed rows, and the most retried rows, that are counted; an index has them."""
MOST_PAIRS = 200


class Bounds(NamedTuple):
    """The bounds on how many waiting rows are counted.

    Each bound but `least` is for all queues and keys together.
    """

    pending: int = 50_000
    """The rows that are counted by the hour: those that fall due first within `HOURS`."""
    pile: int = 200_000
    """The rows that are counted at the due time of the last of `pending`, divided among the queues and keys."""
    later: int = 5_000
    """The rows that fall due after `HOURS`, divided among the queues and keys.

    They tell nothing about the hours, so fewer will do: most of what waits may be due later.
    """
    due: int = 5_000
    """The rows that are due, divided among the queues and keys.

    They cost more, because the rows themselves tell whether they run.
    """
    least: int = 500
    """The rows of each queue and key that are counted, however small its share is."""
    sample: int = 2_000
    """The pages of the table that are read, spread over all of it, to estimate what was not counted; 0 for none."""


FULL = Bounds()
"""The bounds for whoever plans with the forecast: the dashboard, and the metrics by which workers are scaled."""
QUICK = Bounds(pending=5_000, pile=5_000, least=100, sample=0)
"""The bounds for a look that takes no longer however many rows wait."""

_NEAR, _PILE, _NEXT, _LATER, _DUE = range(5)
_OF_PAIR = "delayq_ready WHERE {pair}"


class Estimate(NamedTuple):
    """An estimate of how many messages of each queue and key are ready, and how many fall due within `AHEAD_MS`."""

    ready: Counter[Pair]
    due_soon: Counter[Pair]


@dataclass(slots=True)
class Waiting:
    """The figures of what waits, runs and is buried. `retried` counts messages that wait or run after a failure.

    The current hour began at `hour_began_ms`. `pending_by_hour` has how many messages of each queue and key fall due in
    an hour, by the epoch ms at which the hour begins, for `HOURS`; its last entry has all that fall due later.
    `due_soon` has how many fall due within `AHEAD_MS`. Both are complete up to `known_until_ms`, or altogether if that
    is None. `more_sets` tells that there are more queues and keys than `MOST_PAIRS`; the others are left out.
    `estimate` is set if not all that is ready or falls due soon was counted, and the database can take a sample.
    """

    counts: Counts
    hour_began_ms: int
    retried: int
    errors_last_hour: int
    pending_by_hour: dict[int, dict[Pair, int]] = field(default_factory=dict)
    known_until_ms: int | None = None
    more_sets: bool = False
    due_soon: Counter[Pair] = field(default_factory=Counter)
    estimate: Estimate | None = None

    @property
    def ready_capped(self) -> bool:
        """Return whether more may be ready than was counted."""
        return any(one.ready_capped for one in self.counts.waiting)

    @property
    def soon_capped(self) -> bool:
        """Return whether more may fall due within `AHEAD_MS` than was counted."""
        return self.known_until_ms is not None and self.known_until_ms < self.counts.now_ms + AHEAD_MS


def waiting(database: Database, now_ms: int, zone: tzinfo = UTC, bounds: Bounds = FULL) -> Waiting:
    """Count the rows that are not finished. `now_ms` is the database's time, and hours are those of `zone`.

    Only as many rows are read as `bounds` allow, so a count may be too small: that of failed or retried rows if it is
    `MOST`; that of pending or ready rows of a (queue, key) if its `pending_capped` or `ready_capped` is set; that of
    running rows and suspects if any `ready_capped` is set. Suspects that were rescheduled count as pending.
    `Counts.totals` stays empty: the audit counts them.
    """
    pairs = waiting_pairs(database, MOST_PAIRS + 1)
    sets = [SetCount(queue, key, 0, 0, None) for queue, key in pairs[:MOST_PAIRS]]
    began_ms = hour_began_ms(now_ms, zone)
    error, errors_last_hour, retried, beyond_ms = _counted(database, now_ms, _ends_ms(began_ms), bounds.pending)
    counts = Counts(now_ms, [], 0, 0, error)
    found = Waiting(counts, began_ms, retried, errors_last_hour)
    found.more_sets = len(pairs) > MOST_PAIRS
    most = {_PILE: bounds.pile, _NEXT: bounds.least, _LATER: bounds.later, _DUE: bounds.due}
    shares = {kind: max(number // max(len(sets), 1), bounds.least) for kind, number in most.items()}
    selects = [*_pending(found, beyond_ms, shares), _due(now_ms, shares[_DUE])]
    rows = of_each_pair(database, pairs[:MOST_PAIRS], selects)
    _count_pending(sets, [row for row in rows if row[0] != _DUE], beyond_ms, shares, found)
    _count_due(sets, [row for row in rows if row[0] == _DUE], shares[_DUE], found.counts)
    found.counts.waiting = [one for one in sets if one.pending or one.ready]
    if bounds.sample and database.dialect.table_pages and (found.ready_capped or found.soon_capped):
        found.estimate = _estimate(database, now_ms, bounds.sample)
    return found


class ScheduleCounts(NamedTuple):
    """How many schedules there are, and how many of them are held up. `MOST` of them are looked at."""

    schedules: int
    paused: int
    error: int
    gone: int


def count_schedules(database: Database) -> ScheduleCounts:
    """Count the schedules in one statement, of bounded cost."""
    ((found, paused, error, gone),) = database.rows(
        "SELECT count(*), count(paused_at), count(CASE WHEN error <> '' THEN 1 END), count(gone_at) FROM"
        f" (SELECT paused_at, error, gone_at FROM delayq_schedule WHERE alias = %s LIMIT {MOST}) AS counted",
        [database.alias],
    )
    return ScheduleCounts(found, paused, error, gone)


def hour_began_ms(now_ms: int, zone: tzinfo) -> int:
    """Return when the current hour began in a time zone.

    In some zones hours begin at half or quarter past those of UTC.
    """
    offset = from_ms(now_ms).astimezone(zone).utcoffset() or timedelta()
    return now_ms - (now_ms + offset // timedelta(milliseconds=1)) % HOUR_MS


def _ends_ms(began_ms: int) -> int:
    """Return when the last of the hours ends."""
    return began_ms + HOURS * HOUR_MS


def _counted(database: Database, now_ms: int, ends_ms: int, most_pending: int) -> tuple[int, int, int, int | None]:
    """Return how many rows are buried, were buried in the last hour, and wait or run after a failure; and a time.

    Each count stops at `MOST`. The time is the due time of the first pending row after the first `most_pending`; None
    if no more rows fall due before `ends_ms`.
    """
    parts: list[tuple[str, list[Any]]] = [
        ("delayq_error WHERE alias = %s", [database.alias]),
        ("delayq_error WHERE alias = %s AND ended_at > %s", [database.alias, now_ms - HOUR_MS]),
        ("delayq_ready WHERE alias = %s AND failures > 0", [database.alias]),
    ]
    counts = ", ".join(f"(SELECT count(*) FROM (SELECT 1 FROM {part} LIMIT {MOST}) AS counted)" for part, _ in parts)
    pending = "delayq_ready WHERE alias = %s AND due_at > %s AND due_at < %s"
    beyond = f"{pending} ORDER BY due_at LIMIT 1 OFFSET {most_pending}"
    ((error, errors_last_hour, retried, beyond_ms),) = database.rows(
        f"SELECT {counts}, (SELECT due_at FROM {beyond})",
        [*(value for _, values in parts for value in values), database.alias, now_ms, ends_ms],
    )
    return error, errors_last_hour, retried, beyond_ms


def _pending(found: Waiting, beyond_ms: int | None, shares: Mapping[int, int]) -> list[Sql]:
    """Return the SELECTs that count the pending rows of each queue and key.

    Those due before `beyond_ms`, those due at it, and the next few after it are counted by the hour. Those due after
    the hours are only counted, because that takes half the time.
    """
    now_ms, began_ms, ends_ms = found.counts.now_ms, found.hour_began_ms, _ends_ms(found.hour_began_ms)
    hour = f"due_at - (due_at - {began_ms}) %% {HOUR_MS}"
    soon = f"sum(CASE WHEN due_at <= {now_ms + AHEAD_MS} THEN 1 ELSE 0 END)"
    by_hour = f"count(*), {hour}, min(due_at), {soon}, 0, 0 FROM"
    near = f"SELECT {_NEAR}, {{i}}, {by_hour} {_OF_PAIR} AND due_at > %s AND due_at < %s GROUP BY {hour}"
    pile = (
        f"SELECT {_PILE}, {{i}}, {by_hour} (SELECT due_at FROM {_OF_PAIR} AND due_at = %s LIMIT %s) AS pile"
        f" GROUP BY {hour}"
    )
    following = (
        f"SELECT {_NEXT}, {{i}}, {by_hour} (SELECT due_at FROM {_OF_PAIR} AND due_at > %s AND due_at < %s"
        f" ORDER BY due_at LIMIT %s) AS following GROUP BY {hour}"
    )
    later = (
        f"SELECT {_LATER}, {{i}}, count(*), {ends_ms}, min(due_at), 0, 0, 0 FROM (SELECT due_at FROM {_OF_PAIR}"
        f" AND due_at >= %s ORDER BY due_at LIMIT %s) AS later HAVING count(*) > 0"
    )
    selects = [Sql(near, [now_ms, beyond_ms or ends_ms]), Sql(later, [ends_ms, shares[_LATER]])]
    if beyond_ms is not None:
        selects += [Sql(pile, [beyond_ms, shares[_PILE]]), Sql(following, [beyond_ms, ends_ms, shares[_NEXT]])]
    return selects


def _due(now_ms: int, most: int) -> Sql:
    """Return the SELECT that counts the due rows of each queue and key, up to `most` of each."""
    suspect = f"{WAITING} AND r.crashes >= {SUSPECT_CRASHES}"
    ready = f"{WAITING} AND NOT ({suspect})"
    due = (
        f"SELECT {_DUE}, {{i}}, count(*), 0, min(CASE WHEN {ready} THEN r.due_at END),"
        f" sum(CASE WHEN {ready} THEN 1 ELSE 0 END), sum(CASE WHEN {WAITING} THEN 0 ELSE 1 END),"
        f" sum(CASE WHEN {suspect} THEN 1 ELSE 0 END) FROM ("
        f" SELECT due_at, token, crashes FROM {_OF_PAIR} AND due_at <= %s ORDER BY due_at LIMIT %s) AS r"
    )
    return Sql(due, [now_ms, most])


def _estimate(database: Database, now_ms: int, pages: int) -> Estimate:
    """Estimate what is ready or falls due soon from the rows on `pages` pages of the table.

    The planner's own estimate would not do: in a table that was never analysed it is one row. The number of pages is
    asked for first, because the planner takes a share that it does not know for a tenth of the table, and compiles.
    """
    ((of_table,),) = database.rows(f"SELECT {database.dialect.table_pages}")
    share = min(pages / max(of_table, 1), 1)
    sample = database.dialect.sample.format(percent=100 * share)
    rows = database.rows(
        'SELECT r.queue, r."key", sum(CASE WHEN r.due_at <= %s THEN 1 ELSE 0 END), count(*)'
        f" FROM delayq_ready r {sample} WHERE r.alias = %s AND r.due_at <= %s AND {WAITING}"
        f' AND NOT (r.due_at <= %s AND r.crashes >= {SUSPECT_CRASHES}) GROUP BY r.queue, r."key"',
        [now_ms, database.alias, now_ms + AHEAD_MS, now_ms],
    )
    estimate = Estimate(Counter(), Counter())
    for queue, key, ready, due in rows:
        estimate.ready[queue, key] = round(ready / share)
        estimate.due_soon[queue, key] = round((due - ready) / share)
    return estimate


def _count_pending(
    sets: Sequence[SetCount], rows: Sequence[Row], beyond_ms: int | None, shares: Mapping[int, int], found: Waiting
) -> None:
    counted = Counter[tuple[int, int]]()
    for kind, i, number, hour_ms, first_ms, soon, *_ in rows:
        one, hour = sets[i], found.pending_by_hour.setdefault(hour_ms, {})
        one.pending += number
        one.next_due_ms = earliest(one.next_due_ms, first_ms)
        hour[one.queue, one.key] = hour.get((one.queue, one.key), 0) + number
        found.due_soon[one.queue, one.key] += soon
        counted[kind, i] += number
    capped = {(kind, i) for (kind, i), number in counted.items() if kind in shares and number >= shares[kind]}
    for _, i in capped:
        sets[i].pending_capped = True
    if any(kind != _LATER for kind, _ in capped):
        found.known_until_ms = beyond_ms
    elif capped:
        found.known_until_ms = _ends_ms(found.hour_began_ms)


def _count_due(sets: Sequence[SetCount], rows: Sequence[Row], most: int, counts: Counts) -> None:
    for _, i, read, _, next_due_ms, ready, running, suspects in rows:
        sets[i].ready = int(ready or 0)
        sets[i].next_due_ms = earliest(next_due_ms, sets[i].next_due_ms)
        sets[i].ready_capped = read >= most
        counts.running += int(running or 0)
        counts.suspects += int(suspects or 0)
