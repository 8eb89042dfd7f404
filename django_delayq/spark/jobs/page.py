"""A report as one HTML page that needs nothing else: tables, and a chart of each hour."""

from collections.abc import Iterable, Sequence
from html import escape

from pyspark.sql import DataFrame, Row

from django_delayq.durations import to_text
from django_delayq.spark.jobs.chart import svg
from django_delayq.spark.jobs.report import QUANTILES, SKETCHES, hour_ms, kinds, merged

_STYLE = (
    "body{font-family:sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.25em .75em;text-align:right;border-bottom:1px solid #ccc}"
    "td:first-child,th:first-child{text-align:left}"
)
_MOST_KINDS = 50


def page(figures: DataFrame, failures: DataFrame, title: str) -> str:
    """The page of some figures, and of failures."""
    by_key = merged(figures, "key").orderBy("key").collect()
    by_hour = merged(figures.withColumn("at", hour_ms()), "at").orderBy("at").collect()
    counts = {row.at: row.messages for row in by_hour}
    quantiles = [f"{name} {rank}" for name in SKETCHES for rank in QUANTILES]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>",
        f"<h1>{escape(title)}</h1>",
        svg(counts, "Messages that ended in each hour"),
        "<h2>By key</h2>",
        _table(["key", "messages", "failed", "cancelled", "retried", *quantiles], map(_of_key, by_key)),
        "<h2>Failures by kind</h2>",
        _table(
            ["key", "kind", "messages"],
            ([row.key, row.fingerprint, str(row.messages)] for row in kinds(failures).take(_MOST_KINDS)),
        ),
    ]
    return "\n".join(parts)


def _of_key(row: Row) -> list[str]:
    times = (row[f"{name}_{rank}"] for name in SKETCHES for rank in QUANTILES)
    shares = (f"{count} ({100 * count / row.messages:.1f} %)" for count in (row.failed, row.cancelled, row.retried))
    return [row.key, str(row.messages), *shares, *("" if time is None else to_text(max(time, 0)) for time in times)]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
