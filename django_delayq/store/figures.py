"""Figures of the tables that stay quick however large these are: what would take long to count is counted in part."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django_delayq.brokers.base import Counts, SetCount, earliest
from django_delayq.store.database import Database, Row
from django_delayq.store.pairs import waiting_pairs
from django_delayq.store.rows import CRASHES_NOW, FREE

HOUR_MS = 3_600_000

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
class Finished:
    """When messages finished, and how long after their due time they had started: all that did after `after_ms`."""

    after_ms: int
    messages: list[tuple[int, int | None]] = field(default_factory=list)


def waiting(database: Database, now_ms: int) -> Waiting:
    """A look at the rows that are not finished, `now_ms` by the database's clock.

    Where a number is `MOST`, or a set is `capped`, there may be more. Suspects that were rescheduled count as pending.
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


def finished(database: Database, windows: Sequence[tuple[int, int]], most: int) -> list[Finished]:
    """What finished in each window (after, up to), of the `most` messages that ended last in it."""
    one = (
        "SELECT {i}, ended_at, outcome, started_at - due_at FROM (SELECT ended_at, outcome, started_at, due_at"
        " FROM delayq_finish WHERE alias = %s AND ended_at > %s AND ended_at <= %s ORDER BY ended_at DESC LIMIT %s"
        ") AS ended"
    )
    parameters = [(database.alias, after_ms, until_ms, most) for after_ms, until_ms in windows]
    found = [Finished(after_ms) for after_ms, _ in windows]
    oldest_ms = [until_ms for _, until_ms in windows]
    read = [0] * len(windows)
    for i, ended_ms, outcome, late_ms in _for_each(database, (one, parameters)):
        read[i] += 1
        oldest_ms[i] = min(oldest_ms[i], ended_ms)
        if outcome == "finished":
            found[i].messages.append((ended_ms, late_ms))
    for each, number, since_ms in zip(found, read, oldest_ms, strict=True):
        if number >= most:
            each.after_ms = since_ms - 1
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
            sets[i].capped = True
            found.known_until_ms = earliest(found.known_until_ms, last_ms)


def _count_due(sets: Sequence[SetCount], rows: Sequence[Row], most: int, counts: Counts) -> None:
    for i, read, _, next_due_ms, ready, running, suspects in rows:
        sets[i].ready = int(ready or 0)
        sets[i].next_due_ms = earliest(next_due_ms, sets[i].next_due_ms)
        sets[i].capped |= read >= most
        counts.running += int(running or 0)
        counts.suspects += int(suspects or 0)


def _for_each(database: Database, *looks: tuple[str, Sequence[tuple[Any, ...]]]) -> list[Row]:
    """Run each SELECT for each of its parameters, in one statement. It says as `{i}` which it was for."""
    parts = [(one.replace("{i}", str(i)), each) for one, parameters in looks for i, each in enumerate(parameters)]
    if not parts:
        return []
    return database.rows(" UNION ALL ".join(sql for sql, _ in parts), [value for _, each in parts for value in each])
