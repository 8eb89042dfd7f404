"""SELECTs that stay quick however many rows there are: many in one, pages in due order, the distinct pairs."""

from collections.abc import Sequence
from typing import Any

from django_delayq.brokers.base import BATCH, pages
from django_delayq.store.database import Database, Row, Sql

Look = tuple[str, Sequence[tuple[Any, ...]]]
"""A SELECT, and the parameters of each of its runs. In its text `{i}` is the number of the run."""


def union_all(database: Database, *looks: Look) -> list[Row]:
    """Return the rows of all looks, by one statement, or by as few as the database allows."""
    parts = [(one.replace("{i}", str(i)), each) for one, parameters in looks for i, each in enumerate(parameters)]
    return [row for page in pages(parts, database.dialect.most_selects) for row in _union(database, page)]


def _union(database: Database, parts: Sequence[tuple[str, tuple[Any, ...]]]) -> list[Row]:
    return database.rows(" UNION ALL ".join(sql for sql, _ in parts), [value for _, each in parts for value in each])


Position = tuple[int, int]
"""The due time and pk of the row that was read last."""
START: Position = (0, 0)


def page_after(
    database: Database, after: Position, within_ms: int, columns: Sequence[str], index: str, condition: str = "true"
) -> Sql:
    """Return a SELECT of the next `BATCH` rows `r` that are due within `within_ms`: due time, pk and `columns`.

    `index` ends with due time and pk, and `condition` fixes its other columns to one value each. It is read in two
    ranges: the rows due at the same time as the last one, and the rows due later. MariaDB and SQLite would make one
    range of `(due_at, id) > (…, …)`, that of the due time: each page would read every row that is due at that time.
    """
    dialect = database.dialect
    rows = (
        f"SELECT r.due_at, r.id, {', '.join(columns)} FROM delayq_ready r{dialect.by_index.format(index=index)}"
        f" WHERE r.alias = %s AND {condition}"
    )
    in_order = f"ORDER BY r.due_at, r.id {dialect.limit.format(count=BATCH)}"
    due_ms, pk = after
    later = Sql(
        f"{rows} AND r.due_at > %s AND r.due_at <= {dialect.now} + %s {in_order}", [database.alias, due_ms, within_ms]
    )
    if after == START:
        return later
    return Sql(
        f"SELECT * FROM ({rows} AND r.due_at = %s AND r.id > %s {in_order}) AS at_once"
        f" UNION ALL SELECT * FROM ({later.text}) AS later ORDER BY 1, 2 LIMIT {BATCH}",
        [database.alias, due_ms, pk, *later.parameters],
    )


# The next (queue, key) of the index, again and again: a probe for each, however many rows have it. Two probes, because
# SQLite would make no range of a comparison of both.
_PAIRS = """
WITH RECURSIVE pairs (queue, "key", number) AS (
    SELECT * FROM (
        SELECT queue, "key", 1 FROM {table} WHERE alias = %s ORDER BY queue, "key" LIMIT 1
    ) AS first_pair
    UNION ALL
    SELECT following.queue, following.key, pairs.number + 1
    FROM pairs JOIN {table} following ON following.id = coalesce((
        SELECT r.id FROM {table} r
        WHERE r.alias = %s AND r.queue = pairs.queue AND r.key > pairs.key ORDER BY r.key LIMIT 1
    ), (
        SELECT r.id FROM {table} r
        WHERE r.alias = %s AND r.queue > pairs.queue ORDER BY r.queue, r.key LIMIT 1
    ))
    WHERE pairs.number < %s
)
SELECT queue, "key" FROM pairs
"""

# MySQL and MariaDB make no range from another row's values, and would read from the first row for each pair.
_PAIRS_AT_ONCE = """
SELECT DISTINCT r.queue, r.key FROM {table} r WHERE r.alias = %s ORDER BY r.queue, r.key LIMIT %s
"""


def waiting_pairs(database: Database, most: int) -> list[tuple[str, str]]:
    """Return each (queue, key) that has a row in the ready table, in their order, at most `most`."""
    return _pairs(database, "delayq_ready", most)


def ended_pairs(database: Database, most: int) -> list[tuple[str, str]]:
    """Return each (queue, key) that has a row in the finish table, in their order, at most `most`."""
    return _pairs(database, "delayq_finish", most)


def reported_pairs(database: Database, most: int) -> list[tuple[str, str]]:
    """Return each (queue, key) of the last report, in their order, at most `most`."""
    return _pairs(database, "delayq_report", most)


def _pairs(database: Database, table: str, most: int) -> list[tuple[str, str]]:
    if database.vendor == "mysql":
        return database.rows(_PAIRS_AT_ONCE.format(table=table), [database.alias, most])
    return database.rows(_PAIRS.format(table=table), [*[database.alias] * 3, most])
