"""Find when rows are due: their local times, moved by the rules of a plan, as instants.

The session's time zone must be UTC, as `build_session` sets it: then Spark keeps a local time as it stands, and a clock
change in the driver's own zone has no effect.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, time
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql import Column, DataFrame, functions as f
from pyspark.sql.types import StringType, TimestampNTZType

from django_delayq.spark.errors import SparkError
from django_delayq.spark.session import check_zone
from django_delayq.support.validation import short_repr

DUE, MOVED = "due_at", "moved"
CLOCK_CHANGE, QUIET, BUSINESS, SPREAD, RATE = "clock change", "quiet hours", "business days", "spread", "rate"
REASONS = (CLOCK_CHANGE, QUIET, BUSINESS, SPREAD, RATE)

_LONGEST_HOLIDAY = 60
_LOCAL, _FIRST, _UTC = "_local", "_first", "_utc"
_ZONE = "_zone"
_WHY = "_why_"


@dataclass(frozen=True, slots=True)
class Plan:
    """The rules for due times.

    `due` is an SQL expression for a local time: a TIMESTAMP_NTZ, or text such as "2026-11-21 09:00". `zone` is an SQL
    expression for the name of a time zone. A message that would be due in the `quiet` hours (from, until) waits until
    they end. One that would be due on one of the `holidays`, or with `business_days` on a weekend, waits for the next
    business day, at the same time of day. After that `spread_s` delays each row by 0 to that many seconds, always the
    same for a row, and `max_per_second` delays the rows above that rate. These two may carry a row into a holiday or a
    weekend; `planned` refuses rows that they, or a clock change, carry into quiet hours.
    """

    due: str
    zone: str
    quiet: tuple[time, time] | None = None
    business_days: bool = False
    holidays: frozenset[date] = frozenset()
    spread_s: int = 0
    max_per_second: int | None = None


def with_due(rows: DataFrame, plan: Plan, id: Column) -> DataFrame:
    """Add an instant `due_at`, and in `moved` the reasons why it is not what the plan's `due` says.

    A local time that a clock change skips is due later by the length of the skip. If a local time comes twice, the
    first one counts. A column with the zones stays, for `in_quiet_hours`; `without_zone` drops it. `max_per_second` is
    left to `with_rate`. Raises `SparkError` if `due` is no local time, for an unknown zone, or for a session whose time
    zone is not UTC, and Spark's own error for an expression that Spark can't read.
    """
    check_zone(rows.sparkSession)
    rows = rows.withColumn(_FIRST, f.expr(plan.due)).withColumn(_ZONE, f.expr(plan.zone))
    kind = rows.schema[_FIRST].dataType
    if not isinstance(kind, TimestampNTZType | StringType):
        raise SparkError(
            f"due={short_repr(plan.due)} is {kind.simpleString()}; give a local time: a timestamp_ntz, or text. "
            "CAST(… AS TIMESTAMP_NTZ) makes one."
        )
    _check_zones(rows)
    rows = rows.withColumn(_FIRST, f.col(_FIRST).try_cast("timestamp_ntz")).withColumn(_LOCAL, f.col(_FIRST))
    reasons: list[Column] = []
    for reason, moved in _local_moves(plan):
        why = f"{_WHY}{len(reasons)}"  # a column, because the rules that follow change the local time
        rows = rows.withColumn(why, _why(reason, moved != f.col(_LOCAL))).withColumn(_LOCAL, moved)
        reasons.append(f.col(why))
    rows = rows.withColumn(_UTC, f.convert_timezone(f.col(_ZONE), f.lit("UTC"), f.col(_LOCAL)))
    skipped = f.convert_timezone(f.lit("UTC"), f.col(_ZONE), f.col(_UTC)) != f.col(_LOCAL)
    reasons.append(_why(CLOCK_CHANGE, skipped))
    rows = rows.withColumn(DUE, f.col(_UTC).cast("timestamp"))
    if plan.spread_s:
        seconds = f.pmod(f.xxhash64(id), f.lit(plan.spread_s + 1))
        rows = rows.withColumn(DUE, f.timestamp_micros(f.unix_micros(f.col(DUE)) + seconds * 1_000_000))
        reasons.append(_why(SPREAD, seconds > 0))
    rows = rows.withColumn(MOVED, f.array_compact(f.array(*reasons)))
    return rows.drop(*(name for name in rows.columns if name.startswith(_WHY) or name in (_FIRST, _LOCAL, _UTC)))


def in_quiet_hours(plan: Plan) -> Column:
    """Return the condition that a row is due in quiet hours after all.

    Spreading, a rate or a clock change may have delayed it into them.
    """
    if plan.quiet is None:
        return f.lit(False)
    utc = f.col(DUE).cast("timestamp_ntz")
    return _is_quiet(f.convert_timezone(f.lit("UTC"), f.col(_ZONE), utc), plan.quiet)


def without_zone(rows: DataFrame) -> DataFrame:
    """Drop the column that `in_quiet_hours` needs."""
    return rows.drop(_ZONE)


def _local_moves(plan: Plan) -> Iterator[tuple[str, Column]]:
    """Yield each rule that moves a local time, with the moved time. A rule never undoes one before it."""
    local = f.col(_LOCAL)
    if plan.quiet is not None:
        start, end = plan.quiet
        # Quiet hours that pass midnight end on the next day for a local time before midnight.
        days = f.when(_seconds(local) >= _of_day(start), 1).otherwise(0) if start > end else f.lit(0)
        ends = _at(f.date_add(f.to_date(local), days), end)
        yield QUIET, f.when(_is_quiet(local, plan.quiet), ends).otherwise(local)
    if plan.business_days or plan.holidays:
        yield BUSINESS, _on_a_business_day(local, plan)


def _is_quiet(local: Column, quiet: tuple[time, time]) -> Column:
    start, end = (_of_day(each) for each in quiet)
    seconds = _seconds(local)
    return (seconds >= start) & (seconds < end) if start < end else (seconds >= start) | (seconds < end)


def _on_a_business_day(local: Column, plan: Plan) -> Column:
    day = f.to_date(local)

    def is_free(each: Column) -> Column:
        holidays = each.isin(sorted(plan.holidays)) if plan.holidays else f.lit(False)
        return holidays | (f.weekday(each) >= 5) if plan.business_days else holidays

    days = f.sequence(day, f.date_add(day, _LONGEST_HOLIDAY))
    found = f.filter(days, lambda each: ~is_free(each)).getItem(0)
    return f.when(is_free(day), local + f.make_dt_interval(f.datediff(found, day))).otherwise(local)


def _at(day: Column, at: time) -> Column:
    year, month, day_of_month = f.year(day), f.month(day), f.dayofmonth(day)
    return f.make_timestamp_ntz(year, month, day_of_month, f.lit(at.hour), f.lit(at.minute), f.lit(at.second))


def _seconds(local: Column) -> Column:
    return f.hour(local) * 3600 + f.minute(local) * 60 + f.second(local)


def _of_day(at: time) -> int:
    return at.hour * 3600 + at.minute * 60 + at.second


def _why(reason: str, condition: Column) -> Column:
    return f.when(condition, f.lit(reason))


def _check_zones(rows: DataFrame) -> None:
    unknown = []
    for (name,) in rows.select(_ZONE).distinct().collect():
        try:
            ZoneInfo(name or "")
        except (ZoneInfoNotFoundError, ValueError, OSError):  # "Europe" is a directory
            unknown.append(name)
    if unknown:
        shown_names = ", ".join(map(repr, unknown[:5]))
        raise SparkError(f"There is no time zone {shown_names}; give names such as 'Europe/Berlin'. Nothing was sent.")
