"""Forecast what falls due in the next hours, and how long the live workers take for it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from django_delayq.core.requests import Pair
from django_delayq.monitor.capacity import Capacity, Drain
from django_delayq.store.statistics import HOURS, Waiting
from django_delayq.support.timestamps import HOUR_MS


@dataclass(frozen=True, slots=True)
class Hour:
    """The messages that fall due from `starts_ms` on, until the full hour.

    `complete` says that all of them were counted; else `due` is a part. `drain` is how long they take, with what is
    left over from the hours before.
    """

    starts_ms: int
    due: int
    complete: bool
    drain: Drain


def forecast(waiting: Waiting, capacity: Capacity | None) -> tuple[Hour, ...]:
    """Return a forecast for the rest of this hour and for each of the next. What is ready now is part of the first.

    Without `capacity`, when no workers are known, it has no times.
    """
    now_ms, known_until_ms = waiting.counts.now_ms, waiting.known_until_ms
    left: Mapping[Pair, float] = {one.pair: one.ready for one in waiting.counts.waiting if one.ready}
    is_whole = not (waiting.more_sets or any(one.ready_capped for one in waiting.counts.waiting))
    hours = []
    for number in range(HOURS):
        began_ms = waiting.hour_began_ms + number * HOUR_MS
        ends_ms, starts_ms = began_ms + HOUR_MS, max(began_ms, now_ms)
        due = waiting.pending_by_hour.get(began_ms, {})
        load = _sum(left, due)
        times_ms = capacity.times_ms(load) if capacity else {}
        drain = capacity.drain(load, times_ms) if capacity else Drain(None)
        complete = not waiting.more_sets and (known_until_ms is None or known_until_ms >= ends_ms)
        is_whole &= complete
        at_least = drain.ms is not None and (drain.at_least or not is_whole)
        hours.append(Hour(starts_ms, sum(due.values()), complete, replace(drain, at_least=at_least)))
        left = _left(load, times_ms, ends_ms - starts_ms)
    return tuple(hours)


def _sum(left: Mapping[Pair, float], due: Mapping[Pair, int]) -> Mapping[Pair, float]:
    return {pair: left.get(pair, 0) + due.get(pair, 0) for pair in left.keys() | due.keys()}


def _left(load: Mapping[Pair, float], times_ms: Mapping[Pair, float | None], span_ms: int) -> Mapping[Pair, float]:
    """Return what is left after an hour, which includes all messages whose time is not known."""
    left = {}
    for pair, number in load.items():
        taken_ms = times_ms.get(pair)
        if taken_ms is None:
            left[pair] = number
        elif taken_ms > span_ms:
            left[pair] = number * (1 - span_ms / taken_ms)
    return left
