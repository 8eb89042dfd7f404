"""The queues and keys that wait, without reading every row."""

from django_delayq.store.database import Database

# The next (queue, key) of the index, again and again: a probe for each, however many rows have it.
_PAIRS = """
WITH RECURSIVE pairs (queue, "key", number) AS (
    SELECT * FROM (
        SELECT queue, "key", 1 FROM delayq_ready WHERE alias = %s ORDER BY queue, "key" LIMIT 1
    ) AS first_pair
    UNION ALL
    SELECT following.queue, following.key, pairs.number + 1
    FROM pairs JOIN delayq_ready following ON following.id = (
        SELECT r.id FROM delayq_ready r
        WHERE r.alias = %s AND (r.queue, r.key) > (pairs.queue, pairs.key) ORDER BY r.queue, r.key LIMIT 1
    )
    WHERE pairs.number < %s
)
SELECT queue, "key" FROM pairs
"""


def waiting_pairs(database: Database, most: int) -> list[tuple[str, str]]:
    """Each (queue, key) that has a row in the ready table, in their order, at most `most`."""
    return [(queue, key) for queue, key in database.rows(_PAIRS, [database.alias, database.alias, most])]
