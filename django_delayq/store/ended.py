"""Figures of what ended that stay quick however many rows there are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from django_delayq.store.database import Database
from django_delayq.store.figures import Pair
from django_delayq.store.unions import Look, for_each

MINUTE_MS = 60_000
BURST_MS = 10_000

RAN = 50
"""How long messages of a queue and key ran is told by so many."""
LOOKED = 2_000
"""They are looked for in so many rows of a table, shared out among the queues and keys; in `RAN` of each at least."""

_NTH, _NUMBER, _LAST, _RAN = range(4)


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
    database: Database,
    stepped: Sequence[tuple[int, int, int]],
    windows: Sequence[tuple[int, int]],
    most: int,
    pairs: Sequence[Pair],
) -> tuple[list[Sample], list[Sample], dict[str, float]]:
    """Of each (after, up to, n) every n-th message, uncounted. And what finished in each window (after, up to), with
    the lateness of the `most` that ended last. And how long messages of each key ran, in ms: the mean of those that
    ended last in these queues, where there are any."""
    ended = "delayq_finish WHERE alias = %s AND ended_at > %s AND ended_at <= %s AND outcome = 'finished'"
    nth = f"SELECT {_NTH}, {{i}}, 0, started_at - due_at FROM {ended} AND id %% %s = 0"
    number = f"SELECT {_NUMBER}, {{i}}, count(*), 0 FROM {ended}"
    late = f"SELECT started_at - due_at AS late FROM {ended} ORDER BY ended_at DESC LIMIT %s"
    last = f"SELECT {_LAST}, {{i}}, 0, late FROM ({late}) AS last"
    each_nth = [(database.alias, *each) for each in stepped]
    each_window = [(database.alias, *each) for each in windows]
    each_last = [(*each, most) for each in each_window]
    some, of_windows = [Sample() for _ in stepped], [Sample() for _ in windows]
    ran, total_ms = Counter[str](), Counter[str]()
    looks = (nth, each_nth), (number, each_window), (last, each_last), _ran(database, pairs)
    for kind, i, counted, value in for_each(database, *looks):
        if kind == _RAN:
            _, key = pairs[i]
            ran[key] += counted
            total_ms[key] += int(value or 0)
            continue
        sample = some[i] if kind == _NTH else of_windows[i]
        sample.finished += counted
        if kind != _NUMBER and value is not None:
            sample.late_ms.append(int(value))  # a Decimal where a sum is in the same UNION
    return some, of_windows, {key: total_ms[key] / number for key, number in ran.items() if number}


def _ran(database: Database, pairs: Sequence[Pair]) -> Look:
    """Of each queue and key how many of the last `RAN` messages ran, and how long in all, each attempt for as long as
    the last: a message that was cancelled, or expired, ran for no time, and does not count."""
    of_row = "ended_at, ended_at - started_at AS took, "
    finished = (
        f"SELECT {of_row} failures + 1 AS attempts FROM (SELECT ended_at, started_at, failures, outcome"
        ' FROM delayq_finish WHERE alias = %s AND queue = %s AND "key" = %s ORDER BY ended_at DESC LIMIT %s) AS looked'
        f" WHERE outcome = 'finished' ORDER BY ended_at DESC LIMIT {RAN}"
    )
    buried = (
        f"SELECT {of_row} CASE WHEN failures > 0 THEN failures ELSE 1 END AS attempts"
        " FROM (SELECT ended_at, started_at, failures, queue FROM delayq_error"
        ' WHERE alias = %s AND "key" = %s ORDER BY ended_at DESC LIMIT %s) AS looked'
        f" WHERE queue = %s AND started_at IS NOT NULL ORDER BY ended_at DESC LIMIT {RAN}"
    )
    sql = (
        f"SELECT {_RAN}, {{i}}, count(*), sum(took * attempts) FROM (SELECT took, attempts FROM ("
        f"SELECT * FROM ({finished}) AS finished UNION ALL SELECT * FROM ({buried}) AS buried"
        f") AS ended ORDER BY ended_at DESC LIMIT {RAN}) AS newest"
    )
    looked = max(LOOKED // max(len(pairs), 1), RAN)
    return sql, [(database.alias, queue, key, looked, database.alias, key, looked, queue) for queue, key in pairs]
