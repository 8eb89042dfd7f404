"""Figures of what ended that stay quick to get, however many rows there are."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from django_delayq.store import run_times
from django_delayq.store.database import Database
from django_delayq.store.run_times import Ran
from django_delayq.store.sql.selects import union_all
from django_delayq.store.statistics import Pair

MINUTE_MS = 60_000
BURST_MS = 10_000

_NTH, _LAST, _RAN, _MINUTE = range(4)


@dataclass(slots=True)
class Minute:
    """How many messages finished in a minute, and the most of them in one of its six times `BURST_MS`."""

    finished: int
    most_together: int


@dataclass(slots=True)
class Finished:
    """The messages that finished last, by how many minutes ago. It is complete after `after_ms`."""

    after_ms: int
    minutes: dict[int, Minute] = field(default_factory=dict)


@dataclass(slots=True)
class Sample:
    """How many messages finished in a while, and how late some of them, in no order, had started, in ms."""

    finished: int = 0
    late_ms: list[int] = field(default_factory=list)


def finished(database: Database, now_ms: int, span_ms: int, most: int) -> tuple[Finished, dict[Pair, Ran]]:
    """Return the messages that finished in the span up to `now_ms`, among the `most` that ended last in it.

    Also returns how long messages ran, for the queues and keys of those that ended last.
    """
    bursts = (
        "SELECT ago, count(CASE WHEN outcome = 'finished' THEN 1 END) AS finished, count(*) AS looked,"
        " min(ended_at) AS oldest FROM (SELECT outcome, ended_at,"
        f" ({now_ms} - ended_at) - ({now_ms} - ended_at) %% {BURST_MS} AS ago FROM delayq_finish"
        " WHERE alias = %s AND ended_at > %s AND ended_at <= %s ORDER BY ended_at DESC LIMIT %s) AS newest GROUP BY ago"
    )
    by_minute = (
        f"SELECT {_MINUTE}, '', '', ago - ago %% {MINUTE_MS}, sum(finished), max(finished), sum(looked), min(oldest)"
        f" FROM ({bursts}) AS bursts GROUP BY ago - ago %% {MINUTE_MS}"
    )
    last, of_last = run_times.of_the_last(database)
    looks = (
        (by_minute, [(database.alias, now_ms - span_ms, now_ms, most)]),
        (f"SELECT {_RAN}, ran.*, 0, 0, 0 FROM ({last}) AS ran", of_last),
    )
    rows = [(kind, queue, key, *map(int, figures)) for kind, queue, key, *figures in union_all(database, *looks)]
    counted = [figures for kind, _, _, *figures in rows if kind == _MINUTE]
    is_whole = sum(looked for _, _, _, looked, _ in counted) < most
    after_ms = now_ms - span_ms if is_whole else min(oldest_ms for *_, oldest_ms in counted)
    minutes = {ago // MINUTE_MS: Minute(number, together) for ago, number, together, _, _ in counted}
    by_pair = {(queue, key): Ran(*figures[:2]) for kind, queue, key, *figures in rows if kind == _RAN}
    return Finished(after_ms, minutes), by_pair


def samples(
    database: Database,
    stepped: Sequence[tuple[int, int, int]],
    windows: Sequence[tuple[int, int]],
    most: int,
    pairs: Sequence[Pair],
) -> tuple[list[Sample], list[Sample], dict[Pair, Ran]]:
    """Return every n-th message, uncounted, of each `stepped` (after, up to, n), and what finished in each window.

    Each window (after, up to) comes with the lateness of the `most` that ended last in it. Also returns how long
    messages ran, for each queue and key in which any did.
    """
    ended = "delayq_finish WHERE alias = %s AND ended_at > %s AND ended_at <= %s AND outcome = 'finished'"
    nth = f"SELECT {_NTH}, {{i}}, 0, started_at - due_at FROM {ended} AND id %% %s = 0"
    late = f"count(*) OVER () AS number, started_at - due_at AS late FROM {ended} ORDER BY ended_at DESC LIMIT %s"
    last = f"SELECT {_LAST}, {{i}}, number, late FROM (SELECT {late}) AS last"
    ran_each, of_each = run_times.of_each(database, pairs)
    ran_look = f"SELECT {_RAN}, ran.* FROM ({ran_each}) AS ran", of_each
    each_nth = [(database.alias, *each) for each in stepped]
    each_window = [(database.alias, *each, most) for each in windows]
    some, of_windows = [Sample() for _ in stepped], [Sample() for _ in windows]
    by_pair: dict[Pair, Ran] = {}
    for kind, i, counted, value in union_all(database, (nth, each_nth), (last, each_window), ran_look):
        if kind == _RAN:
            if counted:
                by_pair[pairs[i]] = Ran(counted, int(value))
            continue
        sample = some[i] if kind == _NTH else of_windows[i]
        sample.finished = counted
        if value is not None:
            sample.late_ms.append(int(value))  # a Decimal where a sum is in the same UNION
    return some, of_windows, by_pair
