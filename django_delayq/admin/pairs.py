"""The queues and keys that wait, without reading every row."""

from django.db import connections

from django_delayq.handlers import handlers_by_key

MOST = 200
"""A filter offers at most so many."""

# The next (queue, key) of the index, again and again: a probe for each, however many rows have it.
_PAIRS = """
WITH RECURSIVE pairs (queue, key, number) AS (
    SELECT * FROM (
        SELECT queue, key, 1 FROM delayq_ready WHERE alias = %s ORDER BY queue, key LIMIT 1
    ) AS first_pair
    UNION ALL
    SELECT following.queue, following.key, pairs.number + 1
    FROM pairs JOIN delayq_ready following ON following.id = (
        SELECT r.id FROM delayq_ready r
        WHERE r.alias = %s AND (r.queue, r.key) > (pairs.queue, pairs.key) ORDER BY r.queue, r.key LIMIT 1
    )
    WHERE pairs.number < %s
)
SELECT queue, key FROM pairs
"""


def waiting_pairs(alias: str, using: str) -> list[tuple[str, str]]:
    """Each (queue, key) that has a row in the ready table, at most `MOST`."""
    with connections[using].cursor() as cursor:
        cursor.execute(_PAIRS, [alias, alias, MOST])
        return [(queue, key) for queue, key in cursor.fetchall()]


def known_keys(alias: str) -> set[str]:
    """The keys that have a handler here."""
    return set(handlers_by_key(alias))


def known_queues(alias: str) -> set[str]:
    """The queues that handlers here send to."""
    return {handler.queue for handler in handlers_by_key(alias).values()}
