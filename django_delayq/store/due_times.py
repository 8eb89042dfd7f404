"""Read when the next rows are due."""

from collections.abc import Sequence

from django_delayq.brokers.base import BATCH, Pair, pages
from django_delayq.core.transitions import SUSPECT_CRASHES
from django_delayq.store.database import Database
from django_delayq.store.queries import waiting_pairs

PAIRS = 50
"""The most (queue, key) pairs that one statement reads."""

Found = tuple[int, int, bool]
"""When a claim could lease a row, the row's pk, and whether another lease lasts until then."""


def read_due_times(
    database: Database, pairs: Sequence[Pair], within_ms: int, leased_ms: int, most: int
) -> tuple[int, dict[Pair, list[Found]]]:
    """Return the database's time, and for each pair at most `most` rows that a claim could lease within `within_ms`.

    A leased row is among them if its lease ends within `leased_ms`.
    """
    if len(pairs) > PAIRS:  # leaves out pairs that have no row
        limit = max(len(pairs), BATCH)
        there = set(waiting_pairs(database, limit))
        pairs = pairs if len(there) >= limit else [pair for pair in pairs if pair in there]
    clock_ms = 0
    found: dict[Pair, list[Found]] = {}
    for page in list(pages(pairs, PAIRS)) or [[]]:
        clock_ms = _read_page(database, page, within_ms, leased_ms, most, found)
    return clock_ms, found


def _read_page(
    database: Database, pairs: Sequence[Pair], within_ms: int, leased_ms: int, most: int, found: dict[Pair, list[Found]]
) -> int:
    """Add the rows of these pairs to `found`, and return the database's time."""
    dialect = database.dialect
    of_pair = (
        f"SELECT * FROM (SELECT r.due_at, r.id, r.queue, r.key, r.lease_until FROM delayq_ready r"
        f" WHERE {dialect.of_alias} AND r.queue = %s AND r.key = %s AND r.due_at <= {dialect.now} + %s"
        f" AND (r.lease_until IS NULL OR r.lease_until <= {dialect.now} + %s) AND r.crashes < {SUSPECT_CRASHES}"
        f" {dialect.by_due_time} {dialect.limit.format(count='%s')}) AS due{{i}}"
    )
    selects = [f"SELECT {dialect.now}, 0, '', '', 0", *(of_pair.format(i=i) for i in range(len(pairs)))]
    values = [value for pair in pairs for value in (database.alias, *pair, within_ms, leased_ms, most)]
    clock_ms = 0
    for due_ms, pk, queue, key, lease_until_ms in database.rows(" UNION ALL ".join(selects), values):
        if pk:
            found.setdefault((queue, key), []).append((lease_until_ms or due_ms, pk, lease_until_ms is not None))
        else:
            clock_ms = due_ms
    return clock_ms
