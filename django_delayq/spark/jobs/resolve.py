"""Resolve the rules of rows in the Python processes of Spark, by the functions that a send calls (core/human_time.py).

Rows share times, zones and windows, so a process finds what does not depend on the id once, and keeps it.
"""

from collections.abc import Callable
from datetime import date, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa

from django_delayq.core.human_time import At, instant_of, room_in_window_ms, spread_of, windows_from_words
from django_delayq.spark.site import set_up
from django_delayq.support.timestamps import EPOCH
from django_delayq.support.validation import short_repr

DUE_TYPE = "first_ms bigint, open_ms bigint, due_ms bigint, is_skipped boolean, error string"
"""What is found of a row: when it is due before its window is asked, after that, and with its spread, and whether its
local time is one that the clocks skip. `error` is about one of the rows of a batch, none of which is due then.
"""

Calendar = str | frozenset[date] | None


class Rules(NamedTuple):
    """What holds for all rows of a plan. `holidays` are for rows that name no calendar; `site` has the named ones."""

    is_local: bool
    holidays: frozenset[date] | None
    spread_ms: int
    now_ms: int | None
    site: str | None


_Due = tuple[int | None, int | None, int | None, bool, str | None]

_KEPT = 65_536
_MICROSECOND, _MILLISECOND = timedelta(microseconds=1), timedelta(milliseconds=1)
_TIMES = ("first_ms", "open_ms", "due_ms")
_DUE = pa.struct([*((name, pa.int64()) for name in _TIMES), ("is_skipped", pa.bool_()), ("error", pa.string())])


def due_times(rules: Rules) -> Callable[..., pa.Array]:
    """Return the function that finds when the rows of a batch are due.

    `first` are local times or instants, as the rules say, and `at` the arguments of `At` where a plan has them.
    """

    def find(
        first: pa.Array, zone: pa.Array, calendar: pa.Array, window: pa.Array, id: pa.Array, *at: pa.Array
    ) -> pa.Array:
        if rules.site is not None:
            set_up(rules.site)
        columns = (first.cast(pa.int64()), zone, calendar, window, id, *at)
        try:
            found = list(map(partial(_due, rules), *(column.to_pylist() for column in columns)))
        except ValueError as error:  # the first is enough: to look for what a wrong name may mean takes long
            found = [(None, None, None, False, str(error))] * len(first)
        return pa.array(found, _DUE)

    return find


def outside(rules: Rules) -> Callable[..., pa.Array]:
    """Return the function that finds which of the times of a batch, in epoch ms, are in none of their windows."""

    def find(due_ms: pa.Array, zone: pa.Array, calendar: pa.Array, window: pa.Array) -> pa.Array:
        if rules.site is not None:
            set_up(rules.site)
        columns = (due_ms, zone, calendar, window)
        return pa.array(map(partial(_is_outside, rules), *(column.to_pylist() for column in columns)), pa.bool_())

    return find


_windows_of = lru_cache(maxsize=_KEPT)(windows_from_words)


def _due(
    rules: Rules, first_us: int | None, zone: str, calendar: str | None, window: str | None, id: str | None, *at: Any
) -> _Due:
    if first_us is None:
        return None, None, None, False, None
    is_skipped = False
    try:
        if rules.is_local:
            first_ms, is_skipped = _of_local(first_us, zone)
        elif at:
            instant = _at(zone, calendar or rules.holidays, *at).resolve(EPOCH + first_us * _MICROSECOND)
            first_ms = (instant - EPOCH) // _MILLISECOND
        else:
            first_ms = _rounded_up(first_us)
        from_ms = first_ms
        if rules.now_ms is not None and (window is not None or rules.spread_ms):
            from_ms = max(first_ms, rules.now_ms)  # like a send, which is never for an instant before it
        open_ms, room_ms = _room(rules, from_ms, zone, calendar, window)
        return first_ms, open_ms, open_ms + (spread_of(id or "", room_ms) if room_ms else 0), is_skipped, None
    except OverflowError as error:
        raise ValueError(f"{short_repr(id)}: {error}; give a time of the years 1 to 9999.") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{short_repr(id)}: {error}") from error


def _is_outside(rules: Rules, due_ms: int | None, zone: str, calendar: str | None, window: str | None) -> bool:
    if due_ms is None:
        return False
    try:
        return _room(rules._replace(spread_ms=0), due_ms, zone, calendar, window)[0] > due_ms
    except ValueError:  # it never opens again
        return True


def _room(rules: Rules, from_ms: int, zone: str, calendar: str | None, window: str | None) -> tuple[int, int]:
    if window is None:
        return from_ms, rules.spread_ms
    return _kept_room(from_ms, window, zone, calendar or rules.holidays, rules.spread_ms)


@lru_cache(maxsize=_KEPT)
def _kept_room(from_ms: int, window: str, zone: str, calendar: Calendar, spread_ms: int) -> tuple[int, int]:
    return room_in_window_ms(from_ms, _windows_of(window, zone, calendar), spread_ms)


@lru_cache(maxsize=_KEPT)
def _of_local(local_us: int, zone: str) -> tuple[int, bool]:
    local = _LOCAL_EPOCH + local_us * _MICROSECOND
    instant = instant_of(local, zone)
    is_skipped = instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0) != local
    return _rounded_up((instant - EPOCH) // _MICROSECOND), is_skipped


_LOCAL_EPOCH = datetime(1970, 1, 1)


@lru_cache(maxsize=_KEPT)
def _at(zone: str, calendar: Calendar, time: str, months: int, days: int, business_days: int) -> At:
    return At(
        time=time,
        zone=zone,
        months=months,
        days=days,
        business_days=business_days,
        calendar=calendar if business_days else None,
    )


def _rounded_up(microseconds: int) -> int:
    return -(microseconds // -1000)
