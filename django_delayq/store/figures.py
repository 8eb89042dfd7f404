"""Figures of the tables that stay quick however large these are: what would take long to count is counted in part."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django_delayq.brokers.base import Counts, SetCount, earliest
from django_delayq.store.database import Database, Row
from django_delayq.store.pairs import waiting_pairs
from django_delayq.store.rows import CRASHES_NOW, FREE

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
BURST_MS = 10_000

MOST = 30_000
"""So many rows that are not due are counted in one look, shared out among the queues and keys; an index has them."""
MOST_DUE = 10_000
"""So many that are due, which cost more: the rows themselves tell whether they run."""
LEAST = 500
"""And at least so many of each queue and key."""
MOST_PAIRS = 200


@dataclass(slots=True)
class Waiting:
    """What waits, runs and is buried. `retried` waits or runs after a failure.

    `pending_by_hour` is how many messages fall due in the hours that begin at these epoch ms, complete up to
    `known_until_ms` (None: complete).
    """

    counts: Counts
    retried: int
    errors_last_hour: int
    pending_by_hour: dict[int, int] = field(default_factory=dict)
    known_until_ms: int | None = None


@dataclass(slots=True)
class Minute:
    """How many messages finished in a minute, and the most of them within any `BURST_MS` that ended in it."""

    finished: int
    most_together: int


@dataclass(slots=True)
class Finished:
    """The messages that finished last, by how many minutes ago: all that did after `after_ms`."""

    after_ms: int
    minutes: dict[int, Minute] = field(default_factory=dict)


@dataclass(slots=True)
class Sample:
    """How many messages finished in a while, and how late some of them had started, in ms: any of them."""

    finished: int = 0
    late_ms: list[int] = field(default_factory=list)


def waiting(database: Database, now_ms: int) -> Waiting:
    """A look at the rows that are not finished, `now_ms` by the database's clock.

    Where a number is `MOST`, or one of a set is `…_capped`, there may be more; so of what runs beside what is ready.
    Suspects that were rescheduled count as pending.
    There are no totals: the audit counts them.
    """
    sets = [SetCount(queue, key, 0, 0, None) for queue, key in waiting_pairs(database, MOST_PAIRS)]
    error, errors_last_hour, retried = _counted(database, now_ms)
    found = Waiting(Counts(now_ms, [], 0, 0, error), retried, errors_last_hour)
    if sets:
        most, most_due = max(MOST // len(sets), LEAST), max(MOST_DUE // len(sets), LEAST)
        rows = _rows_of(database, sets, now_ms, most, most_due)
        _count_pending(sets, [tuple(rest) for is_due, *rest in rows if not is_due], most, found)
        _count_due(sets, [tuple(rest) for is_due, *rest in rows if is_due], most_due, found.counts)
    found.counts.waiting = [one for one in sets if one.pending or one.ready]
    return found


def finished(database: Database, now_ms: int, span_ms: int, most: int) -> Finished:
    """What finished in the span up to `now_ms`, of the `most` messages that ended last in it."""
    sql = (
        f"SELECT ago, count(finished), max(together), count(*), min(ended_at) FROM ("
        f"SELECT ended_at, finished, ({now_ms} - ended_at) - ({now_ms} - ended_at) %% {MINUTE_MS} AS ago,"
        f" count(finished) OVER (ORDER BY ended_at RANGE BETWEEN {BURST_MS - 1} PRECEDING AND CURRENT ROW) AS together"
        " FROM (SELECT ended_at, CASE WHEN outcome = 'finished' THEN 1 END AS finished FROM delayq_finish"
        " WHERE alias = %s AND ended_at > %s AND ended_at <= %s ORDER BY ended_at DESC LIMIT %s) AS newest"
        ") AS counted GROUP BY ago"
    )
    rows = database.rows(sql, [database.alias, now_ms - span_ms, now_ms, most])
    is_whole = sum(read for *_, read, _ in rows) < most
    after_ms = now_ms - span_ms if is_whole else min(oldest_ms for *_, oldest_ms in rows)
    minutes = {int(ago) // MINUTE_MS: Minute(int(number), int(together)) for ago, number, together, _, _ in rows}
    return Finished(after_ms, minutes)


def samples(
    database: Database, stepped: Sequence[tuple[int, int, int]], windows: Sequence[tuple[int, int]], most: int
) -> tuple[list[Sample], list[Sample]]:
    """Of each (after, up to, n) every n-th message, uncounted. And what finished in each window (after, up to), with
    the lateness of the `most` that ended last."""
    ended = "delayq_finish WHERE alias = %s AND ended_at > %s AND ended_at <= %s AND outcome = 'finished'"
    nth = f"SELECT 0, {{i}}, 0, started_at - due_at FROM {ended} AND id %% %s = 0"
    number = f"SELECT 1, {{i}}, count(*), 0 FROM {ended}"
    late = f"SELECT started_at - due_at AS late FROM {ended} ORDER BY ended_at DESC LIMIT %s"
    last = f"SELECT 2, {{i}}, 0, late FROM ({late}) AS last"
    each_nth = [(database.alias, *each) for each in stepped]
    each_window = [(database.alias, *each) for each in windows]
    each_last = [(*each, most) for each in each_window]
    found = [Sample() for _ in stepped], [Sample() for _ in windows]
    for kind, i, counted, late_ms in _for_each(database, (nth, each_nth), (number, each_window), (last, each_last)):
        sample = found[min(kind, 1)][i]
        sample.finished += counted
        if kind != 1 and late_ms is not None:
            sample.late_ms.append(late_ms)
    return found


def _counted(database: Database, now_ms: int) -> list[int]:
    """How many are buried, how many of them since an hour ago, and how many were retried."""
    parts: list[tuple[str, list[Any]]] = [
        ("delayq_error WHERE alias = %s", [database.alias]),
        ("delayq_error WHERE alias = %s AND ended_at > %s", [database.alias, now_ms - HOUR_MS]),
        ("delayq_ready WHERE alias = %s AND failures > 0", [database.alias]),
    ]
    sql = ", ".join(f"(SELECT count(*) FROM (SELECT 1 FROM {part} LIMIT {MOST}) AS counted)" for part, _ in parts)
    (numbers,) = database.rows(f"SELECT {sql}", [value for _, values in parts for value in values])
    return [int(number) for number in numbers]


def _rows_of(database: Database, sets: Sequence[SetCount], now_ms: int, most: int, most_due: int) -> list[Row]:
    """Of each set a row for each hour in which something falls due, and one of what is due, in one statement."""
    dialect = database.dialect
    hour = f"due_at - due_at %% {HOUR_MS}"
    pending = (
        f"SELECT 0, {{i}}, count(*), {hour}, min(due_at), max(due_at), 0, 0 FROM (SELECT due_at FROM delayq_ready"
        ' WHERE alias = %s AND queue = %s AND "key" = %s AND due_at > %s ORDER BY due_at LIMIT %s) AS pending'
        f" GROUP BY {hour}"
    )
    free = FREE.format(now=dialect.now)
    suspect = f"{free} AND {CRASHES_NOW.format(least=dialect.least)} >= 2"
    ready = f"{free} AND NOT ({suspect})"
    due = (
        f"SELECT 1, {{i}}, count(*), 0, min(CASE WHEN {ready} THEN r.due_at END),"
        f" sum(CASE WHEN {ready} THEN 1 ELSE 0 END), sum(CASE WHEN {free} THEN 0 ELSE 1 END),"
        f" sum(CASE WHEN {suspect} THEN 1 ELSE 0 END) FROM ("
        " SELECT due_at, lease_until, at_most_once, token, worker, crashes FROM delayq_ready"
        ' WHERE alias = %s AND queue = %s AND "key" = %s AND due_at <= %s ORDER BY due_at LIMIT %s) AS r'
    )
    of = [(database.alias, each.queue, each.key, now_ms) for each in sets]
    looks = [(pending, [(*each, most) for each in of]), (due, [(*each, most_due) for each in of])]
    return _for_each(database, *looks)


def _count_pending(sets: Sequence[SetCount], rows: Sequence[Row], most: int, found: Waiting) -> None:
    last_due: dict[int, int] = {}
    for i, number, hour_ms, first_ms, last_ms, *_ in rows:
        sets[i].pending += number
        sets[i].next_due_ms = earliest(sets[i].next_due_ms, first_ms)
        last_due[i] = max(last_due.get(i, 0), last_ms)
        found.pending_by_hour[hour_ms] = found.pending_by_hour.get(hour_ms, 0) + number
    for i, last_ms in last_due.items():
        if sets[i].pending >= most:
            sets[i].pending_capped = True
            found.known_until_ms = earliest(found.known_until_ms, last_ms)


def _count_due(sets: Sequence[SetCount], rows: Sequence[Row], most: int, counts: Counts) -> None:
    for i, read, _, next_due_ms, ready, running, suspects in rows:
        sets[i].ready = int(ready or 0)
        sets[i].next_due_ms = earliest(next_due_ms, sets[i].next_due_ms)
        sets[i].ready_capped = read >= most
        counts.running += int(running or 0)
        counts.suspects += int(suspects or 0)


def _for_each(database: Database, *looks: tuple[str, Sequence[tuple[Any, ...]]]) -> list[Row]:
    """Run each SELECT for each of its parameters, in one statement. It says as `{i}` which it was for."""
    parts = [(one.replace("{i}", str(i)), each) for one, parameters in looks for i, each in enumerate(parameters)]
    if not parts:
        return []
    return database.rows(" UNION ALL ".join(sql for sql, _ in parts), [value for _, each in parts for value in each])
