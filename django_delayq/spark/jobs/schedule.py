"""Send a message for each row, due by a plan. A forecast counts the messages before any of them is sent."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import Column, DataFrame, functions as f
from pyspark.sql.types import TimestampType

from django_delayq.spark.errors import SparkError
from django_delayq.spark.jobs.due import DUE, Plan, outside_window, rule_columns, rules_of, with_due
from django_delayq.spark.jobs.forecast import Forecast, forecast
from django_delayq.spark.jobs.rate import with_rate
from django_delayq.spark.write.columns import check_id_type
from django_delayq.spark.write.summary import WriteSummary, read_summary
from django_delayq.support.timestamps import wall_clock_ms
from django_delayq.support.validation import did_you_mean

_INSTANT = "yyyy-MM-dd'T'HH.mm.ss.SSSSSS'Z'"
"""How an instant stands in an id. The session's time zone is UTC (due.py checks that)."""


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages that rows become: `data_columns` are the fields of the data, or with `bare` one column is the data.

    The id is made of the key and `id_columns`.
    """

    key: str
    id_columns: Sequence[str]
    data_columns: Sequence[str] = ()
    bare: bool = False
    tag: str | None = None
    queue: str | None = None
    priority: int | None = None


def planned(
    rows: DataFrame, messages: Messages, plan: Plan, *, now_ms: int | None = None, settings: str | None = None
) -> tuple[DataFrame, Forecast]:
    """Return the messages as rows for a write, and the forecast of when they are due. Nothing is sent.

    With `now_ms`, rows of a plan with a window or a spread are due as if none was for an instant before it: like those
    of a send, they wait for their window and are spread although their time is past. `settings` names the site that has
    the plan's calendars, unless DJANGO_SETTINGS_MODULE does.

    Raises `SparkError` for a missing column, for one that no id can be made of, for rules that can't be, for rows
    without a due time, and if the rate would have messages due outside their windows.
    """
    _check_columns(rows, messages)
    rules = rules_of(plan, now_ms, settings)
    rows = rows.select(*_columns(rows, messages), *rule_columns(plan))
    columns = [*(name for name in rows.columns if not name.startswith("_")), DUE]
    rows = with_due(rows, plan, rules)
    if plan.max_per_second:
        rows = with_rate(rows, plan.max_per_second, f.col("id"))
    seen = forecast(rows, outside_window(plan, rules))
    if seen.error:
        raise SparkError(f"{seen.error} Nothing was sent.")
    if seen.undue:
        raise SparkError(
            f"{seen.undue} of {seen.rows} rows have no due time: the plan gives null for them, or text that is no "
            "local time such as '2026-11-21 09:00'. Leave them out, or mend them. Nothing was sent."
        )
    if seen.outside:
        raise SparkError(
            f"{seen.outside} of {seen.rows} messages would be due outside their windows, because the rate moves them "
            "there: raise the rate, or change their times. Nothing was sent."
        )
    return rows.select(*columns), seen


def schedule(rows: DataFrame, messages: Messages, plan: Plan, **options: str) -> tuple[WriteSummary, Forecast]:
    """Plan and send the messages. `options` are those of a write: `using`, `job`, `onBadRow` and so on."""
    out, seen = planned(rows, messages, plan, now_ms=wall_clock_ms(), settings=options.get("settings"))
    return send(out, **options), seen


def send(out: DataFrame, **options: str) -> WriteSummary:
    """Write messages, and return the counts of the write."""
    with TemporaryDirectory(prefix="delayq-spark-") as directory:
        path = str(Path(directory) / "summary.json")
        out.write.format("delayq").mode("append").options(**{"summaryPath": path, **options}).save()
        return read_summary(options.get("summaryPath", path))


def _columns(rows: DataFrame, messages: Messages) -> list[Column]:
    columns = [f.lit(messages.key).alias("key"), _id(rows, messages).alias("id")]
    if messages.bare:
        columns.append(f.col(messages.data_columns[0]).alias("data"))
    elif messages.data_columns:
        columns.append(f.struct(*messages.data_columns).alias("data"))
    of_all = {"tag": messages.tag, "queue": messages.queue, "priority": messages.priority}
    return columns + [f.lit(value).alias(name) for name, value in of_all.items() if value not in (None, "")]


def _id(rows: DataFrame, messages: Messages) -> Column:
    """Return the id, made in the same way as by a write with `idColumns` (write/ids.py).

    It is null if one of the columns is null. Such a row is bad.
    """
    parts = [f.lit(messages.key)]
    for name in messages.id_columns:
        text = f.col(name).cast("string")
        if isinstance(rows.schema[name].dataType, TimestampType):
            text = f.date_format(name, _INSTANT)
        parts += [f.lit(":"), f.replace(f.replace(text, f.lit("%"), f.lit("%25")), f.lit(":"), f.lit("%3A"))]
    return f.concat(*parts)


def _check_columns(rows: DataFrame, messages: Messages) -> None:
    for name in (*messages.id_columns, *messages.data_columns):
        if name not in rows.columns:
            raise SparkError(f"There is no column {name!r}: {did_you_mean(name, rows.columns)}")
    for name in messages.id_columns:
        check_id_type(name, rows.schema[name].dataType)
    if not messages.id_columns:
        raise SparkError("Ids are made of columns, so that a job that is run again sends nothing twice: name them.")
    if messages.bare and len(messages.data_columns) != 1:
        raise SparkError(f"Bare data is one column; these are {len(messages.data_columns)}.")
