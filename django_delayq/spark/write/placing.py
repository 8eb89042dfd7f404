"""Measure how much a write leaves to the relay, and whether the relay will place it in time."""

from collections.abc import Iterable
from time import perf_counter

from django_delayq.brokers.base import BATCH
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable
from django_delayq.spark.write.summary import Placing
from django_delayq.store.queue import DatabaseQueue
from django_delayq.store.relay import relay
from django_delayq.support.units import LONGEST_MS

_MINUTE_MS = 60_000


def placing(store: DatabaseQueue) -> Placing:
    """Measure the relay's pace by placing two pages here, the nearest ones first, as the relay does."""
    database = store.database
    minutes = due_by_minute(store)
    unplaced = sum(rows for _, rows in minutes)
    pace = _pace(store) if unplaced > 2 * BATCH else None
    if pace is None:
        return Placing(unplaced)
    late_ms = lateness_ms(minutes, pace, database.now_ms(), store.settings.horizon)
    return Placing(unplaced - 2 * BATCH, pace, late_ms // 1000)


def due_by_minute(store: DatabaseQueue) -> list[tuple[int, int]]:
    """Return in order the minutes (their begin in epoch ms) in which unplaced messages fall due, with their numbers."""
    rows = store.database.rows(
        f"SELECT r.due_at - r.due_at %% {_MINUTE_MS} AS minute, count(*) FROM delayq_ready r"  # noqa: S608  # ours
        f" WHERE r.alias = %s AND {store.database.dialect.unplaced} GROUP BY 1 ORDER BY 1",
        [store.database.alias],
    )
    return [(int(minute), int(count)) for minute, count in rows]


def _pace(store: DatabaseQueue) -> int | None:
    try:
        relay(store.database, store.timer, LONGEST_MS)  # connects
        began = perf_counter()
        placed = relay(store.database, store.timer, LONGEST_MS)
        return round(placed / (perf_counter() - began)) if placed == BATCH else None
    except (BrokerUnavailable, BrokerRefused):  # the messages are sent all the same
        return None


def lateness_ms(minutes: Iterable[tuple[int, int]], pace: float, now_ms: int, horizon_ms: int) -> int:
    """Return how late the last message of a minute is placed, in the worst minute, at `pace` messages a second.

    A message can be placed from `horizon_ms` before it is due, and after all those that are due before it.
    """
    done_ms, late_ms = float(now_ms), 0.0
    for minute_ms, rows in minutes:
        done_ms = max(done_ms, minute_ms - horizon_ms) + 1000 * rows / pace
        late_ms = max(late_ms, done_ms - max(minute_ms + _MINUTE_MS, now_ms))
    return int(late_ms)
