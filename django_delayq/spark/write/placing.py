"""Measure how much a write leaves to the relay, and whether the relay will place it in time."""

from collections.abc import Iterable
from time import perf_counter

from django_delayq.brokers.base import BATCH
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable
from django_delayq.spark.write.summary import Placing
from django_delayq.store import StoredBroker
from django_delayq.store.relay import relay
from django_delayq.support.units import LONGEST_MS

_MINUTE_MS = 60_000


def placing(broker: StoredBroker) -> Placing:
    """Measure the relay's pace by placing two pages here, the nearest ones first, as the relay does."""
    database = broker.database
    minutes = due_by_minute(broker)
    unplaced = sum(rows for _, rows in minutes)
    pace = _pace(broker) if unplaced > 2 * BATCH else None
    if pace is None:
        return Placing(unplaced)
    late_ms = lateness_ms(minutes, pace, database.now_ms(), broker.store.horizon)
    return Placing(unplaced - 2 * BATCH, pace, late_ms // 1000)


def due_by_minute(broker: StoredBroker) -> list[tuple[int, int]]:
    """Return in order the minutes (their begin in epoch ms) in which unplaced messages fall due, with their numbers."""
    rows = broker.database.rows(
        f"SELECT r.due_at - r.due_at %% {_MINUTE_MS} AS minute, count(*) FROM delayq_ready r"  # noqa: S608  # ours
        f" WHERE r.alias = %s AND {broker.database.dialect.unplaced} GROUP BY 1 ORDER BY 1",
        [broker.database.alias],
    )
    return [(int(minute), int(count)) for minute, count in rows]


def _pace(broker: StoredBroker) -> int | None:
    try:
        relay(broker.database, broker.timer, LONGEST_MS)  # connects
        began = perf_counter()
        placed = relay(broker.database, broker.timer, LONGEST_MS)
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
