"""Find when rows are due, by the rules of a plan, which are those of a send.

The session's time zone must be UTC, as `build_session` sets it: then Spark keeps a local time as it stands.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

from pyspark.sql import Column, DataFrame, functions as f
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType, IntegralType, StringType, TimestampNTZType, TimestampType

from django_delayq.spark.errors import SparkError
from django_delayq.spark.jobs.resolve import DUE_TYPE, Rules, due_times, outside
from django_delayq.spark.session import check_zone
from django_delayq.spark.site import settings_module

DUE, MOVED, ERROR = "due_at", "moved", "error"
CLOCK_CHANGE, PAST, WINDOW, SPREAD, RATE = "clock change", "a time in the past", "window", "spread", "rate"
REASONS = (CLOCK_CHANGE, PAST, WINDOW, SPREAD, RATE)

Expression = str | Column
"""An expression in Spark's SQL, or a column."""

_FIRST, _ZONE, _WINDOW, _CALENDAR, _FOUND = "_first", "_zone", "_window", "_calendar", "_found"
_AT = ("_time", "_months", "_days", "_business_days")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The rules for due times: those of a send, each of which may be another one in each row.

    A row is due at `due`, a local time in `zone`: a TIMESTAMP_NTZ, or text such as "2026-11-21 09:00". Or it is due at
    `after`, an instant; with a `time` at that local time after it, as `At` counts `months`, `days` and `business_days`.
    `window` is text such as "mon-fri 09:00-18:00", with semicolons between several. `calendar` is a name in CALENDARS;
    for rows in which it is null `holidays` count. Null for `window` is no window. `spread_ms` is that of a send.

    `max_per_second` delays the rows above that rate. `planned` refuses those that it carries out of their windows.

    Raises `SparkError` for rules that don't go together.
    """

    zone: Expression
    due: Expression | None = None
    after: Expression | None = None
    time: Expression | None = None
    months: Expression | None = None
    days: Expression | None = None
    business_days: Expression | None = None
    window: Expression | None = None
    calendar: Expression | None = None
    holidays: frozenset[date] | None = None
    spread_ms: int = 0
    max_per_second: int | None = None

    def __post_init__(self) -> None:
        counted = [name for name in ("months", "days", "business_days") if getattr(self, name) is not None]
        if (self.due is None) == (self.after is None):
            raise SparkError("When are rows due? Give either due, a local time, or after, an instant.")
        if self.time is not None and self.after is None:
            raise SparkError("time is that of a day after an instant: give after, too, or put the time into due.")
        if counted and self.time is None:
            raise SparkError(f"{counted[0]} leads to a day, and not to a time: give time, too.")
        has_holidays = self.calendar is not None or self.holidays is not None
        if has_holidays and self.window is None and self.business_days is None:
            raise SparkError("Holidays are asked for windows and business days only: give one of these, too.")


def rule_columns(plan: Plan) -> Iterator[Column]:
    """Yield the columns that `with_due` needs, made of the columns of a plan's rows."""
    yield _column(plan.due if plan.after is None else plan.after).alias(_FIRST)
    yield _column(plan.zone).alias(_ZONE)
    yield _column(plan.calendar).alias(_CALENDAR)
    yield _column(plan.window).alias(_WINDOW)
    if plan.time is not None:
        counts = [f.lit(0) if each is None else _column(each) for each in (plan.months, plan.days, plan.business_days)]
        for name, column in zip(_AT, (_column(plan.time), *counts), strict=True):
            yield column.alias(name)


def with_due(rows: DataFrame, plan: Plan, rules: Rules) -> DataFrame:
    """Add an instant `due_at`, and in `moved` the reasons why it is not what the plan says first.

    `rows` have an `id`, and the columns of `rule_columns`. The columns that `outside_window` needs stay. Rows without a
    time get none, and nor do those beside a row whose rules can't be, such as an unknown zone: `error` says so then.
    `max_per_second` is left to `with_rate`. Raises `SparkError` for a column of a wrong type, and for a session whose
    time zone is not UTC.
    """
    check_zone(rows.sparkSession)
    rows = rows.withColumn(_FIRST, _first(rows, plan))
    for name in _AT[1:] if plan.time is not None else ():
        _check_type(rows, name, (StringType, IntegralType), name.lstrip("_"), "whole numbers")
        rows = rows.withColumn(name, f.col(name).try_cast("int"))
    at = _AT if plan.time is not None else ()
    found = _asked(due_times(rules), DUE_TYPE, _FIRST, _ZONE, _CALENDAR, _WINDOW, "id", *at)
    rows = rows.withColumn(_FOUND, found)
    first, opened, due = (f.col(f"{_FOUND}.{name}") for name in ("first_ms", "open_ms", "due_ms"))
    now = f.lit(rules.now_ms).cast("bigint")
    is_past = (first < now) & (opened >= now)
    reasons = {
        CLOCK_CHANGE: f.col(f"{_FOUND}.is_skipped"),
        PAST: is_past,
        WINDOW: opened > f.when(is_past, now).otherwise(first),
        SPREAD: due > opened,
    }
    moved = f.array_compact(f.array(*(f.when(holds, f.lit(reason)) for reason, holds in reasons.items())))
    added = {DUE: f.timestamp_millis(due), MOVED: moved, ERROR: f.col(f"{_FOUND}.error")}
    return rows.withColumns(added).drop(_FIRST, _FOUND, *at)


def rules_of(plan: Plan, now_ms: int | None, settings: str | None) -> Rules:
    """Return what the processes of Spark must know of a plan. Raises `SparkError` if it names calendars of no site."""
    site = None if plan.calendar is None else settings_module(settings)
    return Rules(plan.due is not None, plan.holidays, plan.spread_ms, now_ms, site)


def outside_window(plan: Plan, rules: Rules) -> Column:
    """Return the condition that a row is due outside its windows after all, where the rate has carried it."""
    if plan.window is None or plan.max_per_second is None:
        return f.lit(False)
    held_ms = f.when(f.array_contains(MOVED, RATE), f.unix_millis(DUE))
    return _asked(outside(rules), "boolean", held_ms, _ZONE, _CALENDAR, _WINDOW)


def _asked(find: Callable[..., Any], kind: str, *columns: Column | str) -> Column:
    column: Column = arrow_udf(find, kind)(*columns)  # type: ignore[call-overload]  # its stubs lack a default
    return column


def _column(expression: Expression | None) -> Column:
    if expression is None:
        return f.lit(None).cast("string")
    return f.expr(expression) if isinstance(expression, str) else expression


def _first(rows: DataFrame, plan: Plan) -> Column:
    if plan.after is not None:
        what = "instants, as a TIMESTAMP; CAST(… AS TIMESTAMP) makes one, of text in UTC unless it has an offset"
        _check_type(rows, _FIRST, (TimestampType,), "after", what)
        return f.col(_FIRST)
    what = "local times, as a TIMESTAMP_NTZ or text; CAST(… AS TIMESTAMP_NTZ) makes one"
    _check_type(rows, _FIRST, (TimestampNTZType, StringType), "due", what)
    return f.col(_FIRST).try_cast("timestamp_ntz")


def _check_type(rows: DataFrame, column: str, kinds: tuple[type[DataType], ...], name: str, what: str) -> None:
    kind = rows.schema[column].dataType
    if not isinstance(kind, kinds):
        raise SparkError(f"{name} is {kind.simpleString()}; give {what}.")
