"""Render a report as one HTML page that needs nothing else: tables, and charts by the hour."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from pyspark.sql import DataFrame, Row

from django_delayq.spark.jobs.chart import an_hour, svg
from django_delayq.spark.jobs.report import QUANTILES, SKETCHES, hour_ms, kinds, merged
from django_delayq.support.units import to_text

_STYLE = (
    "body{font-family:sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.25em .75em;text-align:right;border-bottom:1px solid #ccc}"
    "td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}"
)
_MOST_KINDS = 50


def page(figures: DataFrame, failures: DataFrame, title: str) -> str:
    """Return the HTML page of figures and failures."""
    by_key = merged(figures, "queue", "key").orderBy("queue", "key").collect()
    by_hour = merged(figures.withColumn("at", hour_ms()), "at").orderBy("at").collect()
    quantiles = [f"{name} {rank}" for name in SKETCHES for rank in QUANTILES]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>",
        f"<h1>{escape(title)}</h1>",
        _plot("Messages that ended in each hour", {row.at: row.messages for row in by_hour}),
        _plot("Messages that failed in each hour", {row.at: row.failed for row in by_hour}),
        _plot("Within what lateness 95 % of each hour's started", _times(by_hour, "lateness_p95"), to_text),
        _plot("Within what duration 95 % of each hour's ended", _times(by_hour, "duration_p95"), to_text),
        "<h2>By queue and key</h2>",
        _table(["queue", "key", "messages", "failed", "cancelled", "retried", *quantiles], map(_of_key, by_key)),
        "<h2>Failures by kind</h2>",
        _table(
            ["key", "kind", "messages"],
            ([row.key, row.fingerprint, str(row.messages)] for row in kinds(failures).take(_MOST_KINDS)),
        ),
    ]
    return "\n".join(parts)


def _plot(title: str, hours: Mapping[int, int], words: Callable[[int], str] = an_hour) -> str:
    return f"<h2>{escape(title)}</h2>{svg(hours, title, words)}"


def _times(by_hour: Iterable[Row], name: str) -> dict[int, int]:
    """Return the values of a column by hour, without the hours in which nothing started."""
    return {row.at: max(row[name], 0) for row in by_hour if row[name] is not None}


def _of_key(row: Row) -> list[str]:
    times = (row[f"{name}_{rank}"] for name in SKETCHES for rank in QUANTILES)
    shares = (f"{count} ({100 * count / row.messages:.1f} %)" for count in (row.failed, row.cancelled, row.retried))
    words = ("" if time is None else to_text(max(time, 0)) for time in times)
    return [row.queue, row.key, str(row.messages), *shares, *words]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
