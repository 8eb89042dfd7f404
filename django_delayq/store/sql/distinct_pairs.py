"""Read the queues and keys that rows have, without reading every row."""

from django_delayq.store.database import Database

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
