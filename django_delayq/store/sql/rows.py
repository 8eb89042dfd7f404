"""How rows are read: the columns and conditions that statements share, and SELECTs that stay quick however many rows.

Those are: many SELECTs in one, pages in due order, the distinct pairs.
"""

from collections.abc import Sequence
from typing import Any

from django_delayq.brokers.base import BATCH, Claimed, Header, Info, pages
from django_delayq.core.history import Ended, PastAttempt
from django_delayq.core.message import State
from django_delayq.store.database import Database, Row, Sql

SHARED = (
    'alias, message_id, queue, "key", data, tag, trace_id, due_at, scheduled_at, sent_at, expires_at, max_attempts, '
    "timeout_ms, at_most_once, failures, crashes, error, worker, started_at, history"
)
"""The columns of a new row, and of a move from one table to another."""

MESSAGE = (
    'message_id, queue, "key", data, tag, trace_id, due_at, scheduled_at, sent_at, expires_at, '
    "max_attempts, timeout_ms, at_most_once, failures, crashes, error, worker"
)
"""A message, as the functions below read it."""

CLAIMED = f"{MESSAGE}, history"
"""A message, as a claim reads it."""

WAITING = "r.token IS NULL"
"""A row that waits. To every read and every move any other row runs, even past its lease, until it is reclaimed.

Only the clock monitor knows when that may be.
"""

LEASE_FREE = "(r.lease_until IS NULL OR r.lease_until <= {now})"
"""A row that a claim may get: it waits, or its lease ran out and can be reclaimed."""

# Conditions that an index is on. SQLite finds it by the words of its condition, MySQL by what its column equals.
ONCE = "r.at_most_once AND r.at_most_once = (1 = 1)"
CRASHED = "r.crashes >= 1"

LEASES = {"pk": int, "of_id": str, "token": int}
"""The columns of a given table `held` of leases."""

JOIN_LEASES = "r.id = held.pk AND r.message_id = held.of_id AND r.token = held.token"
"""The condition that ties a row `r` to a lease of a given table `held`."""

CLEAR_LEASE = "token = NULL, lease_until = NULL, worker = '', started_at = NULL, interrupted = (1 = 0)"
"""The changes of a move that ends a lease and keeps the row."""


def checked(condition: str) -> str:
    """Return a condition that the planner uses only to check rows, never to choose an index.

    The planner believes of a table that was never analysed that conditions on three columns leave one row.
    """
    return f"CASE WHEN {condition} THEN 1 = 1 ELSE 1 = 0 END"


def shared_with(**values: str) -> str:
    """Return the columns `SHARED` for a SELECT, with `values` (SQL by column) in place of some."""
    return ", ".join(values.get(column, column) for column in SHARED.split(", "))


def header_of(row: Row) -> Header:
    """Return the header of a row of `MESSAGE`."""
    _, queue, key, _, tag, trace_id, _, scheduled_ms, sent_ms, expires_at_ms, max_attempts, timeout_ms, once = row[:13]
    return Header(
        queue=queue,
        key=key,
        at_most_once=bool(once),
        expires_ms=None if expires_at_ms is None else expires_at_ms - scheduled_ms,
        max_attempts=max_attempts,
        timeout_ms=timeout_ms,
        tag=tag,
        trace_id=trace_id,
        sent_ms=sent_ms,
        scheduled_ms=scheduled_ms,
    )


def claimed_of(pk: int, row: Row, token: int, now_ms: int) -> Claimed:
    """Return the lease that a worker gets for a row of `CLAIMED`."""
    return Claimed(
        row[0], token, row[6], header_of(row), row[3].encode(), row[13], row[14], str(pk), row[17], now_ms, row[16]
    )


def info_of(row: Row, state: State) -> Info:
    """Return a row of `MESSAGE` as a read shows it."""
    return Info(row[0], state, row[6], header_of(row), row[3].encode(), row[13], row[14], row[15])


def buried_attempt(
    failures: int, started_ms: int | None, ended_ms: int, worker: str, error: str, detail: str
) -> PastAttempt:
    """Return the attempt that buried a row. If it failed, so that it has a traceback, `failures` includes it."""
    return PastAttempt(failures if detail else failures + 1, started_ms, ended_ms, worker, Ended.BURIED, error, detail)


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
