"""Forecast a schedule before it is sent: messages per hour, the peak, and how many were moved and why."""

from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, functions as f

from django_delayq.spark.jobs.due import DUE, ERROR, MOVED, REASONS
from django_delayq.support.timestamps import HOUR_MS, from_ms

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Forecast:
    """The numbers of rows that are due in each hour, by its start in epoch ms, and of rows that were moved, by reason.

    `undue` counts rows without a due time, and `outside` counts rows that are due outside their windows. `error` is
    about a row whose rules can't be.
    """

    rows: int
    hours: dict[int, int] = field(default_factory=dict)
    peak_per_minute: int = 0
    peak_ms: int = 0
    moved: dict[str, int] = field(default_factory=dict)
    undue: int = 0
    outside: int = 0
    error: str | None = None

    def lines(self) -> list[str]:
        """Return the forecast in lines for a terminal."""
        if not self.hours:
            return ["No rows."]
        first, last = min(self.hours), max(self.hours)
        lines = [
            f"{self.rows} messages, due from {_at(first)} to {_at(last + HOUR_MS)} (UTC)",
            f"Peak: {self.peak_per_minute} in the minute from {_at(self.peak_ms)}",
        ]
        lines += [f"Moved by {reason}: {count}" for reason, count in self.moved.items() if count]
        return [*lines, *(f"{_at(hour)}  {count}" for hour, count in sorted(self.hours.items()))]


def forecast(rows: DataFrame, outside: Column) -> Forecast:
    """Count the rows by the hour in which they are due, and by the reasons why they were moved.

    `outside` is the condition that a row is due outside its windows.
    """
    minute = f.floor(f.unix_millis(f.col(DUE)) / _MINUTE_MS) * _MINUTE_MS
    moved = [f.count_if(f.array_contains(MOVED, reason)).alias(reason) for reason in REASONS]
    counts = rows.groupBy(minute.alias("minute")).agg(
        f.count("*").alias("rows"), f.count_if(outside).alias("outside"), f.min(ERROR).alias("error"), *moved
    )
    total = 0
    hours: dict[int, int] = {}
    reasons = dict.fromkeys(REASONS, 0)
    peak = peak_ms = undue = moved_out = 0
    error = None
    for row in counts.toLocalIterator():
        total += row.rows
        moved_out += row.outside
        if row.minute is None:
            undue += row.rows
            error = row.error
            continue
        hour = row.minute // HOUR_MS * HOUR_MS
        hours[hour] = hours.get(hour, 0) + row.rows
        peak, peak_ms = max((peak, peak_ms), (row.rows, row.minute))
        for reason in REASONS:
            reasons[reason] += row[reason]
    return Forecast(total, dict(sorted(hours.items())), peak, peak_ms, reasons, undue, moved_out, error)


def _at(ms: int) -> str:
    return f"{from_ms(ms):%Y-%m-%d %H:%M}"
