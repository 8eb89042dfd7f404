"""Prune: what ended long ago leaves its table, a batch at a time, and is counted in the tally."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from django_delayq.brokers.base import BATCH, pages
from django_delayq.store.database import Database, Row, marks
from django_delayq.store.sql.moves import count

_COUNTED_AS = {"delayq_finish": "r.outcome", "delayq_error": "'dropped'"}


def prune_finished(database: Database, before_ms: int) -> int:
    """Remove a batch of rows that finished or were cancelled before `before_ms`.

    Return how many; 0 when none is left.
    """
    return _prune(database, "delayq_finish", before_ms)


def prune_errors(database: Database, before_ms: int) -> int:
    """Remove rows that were buried before `before_ms`, as `prune_finished` does. They count as dropped."""
    return _prune(database, "delayq_error", before_ms)


def prunable(database: Database, table: str, before_ms: int) -> int:
    """Return how many rows of a table ended before `before_ms`."""
    ((number,),) = database.rows(
        f"SELECT count(*) FROM {table} r WHERE r.alias = %s AND r.ended_at < %s", [database.alias, before_ms]
    )
    return int(number)


def remove(database: Database, table: str, pks: Sequence[int]) -> int:
    """Remove just these rows, in the caller's transaction, for a caller who has kept them elsewhere. Return how many.

    They count as pruned ones do.
    """
    return sum(_remove(database, table, f"r.id IN ({marks(len(page))})", page) for page in pages(sorted(pks), BATCH))


def _remove(database: Database, table: str, condition: str, parameters: Sequence[int]) -> int:
    rows = database.rows(
        f"SELECT r.id, {_COUNTED_AS[table]} FROM {table} r WHERE r.alias = %s AND {condition}{database.dialect.lock}",
        [database.alias, *parameters],
    )
    _forget(database, table, rows)
    return len(rows)


def _prune(database: Database, table: str, before_ms: int) -> int:
    return database.transaction(partial(_prune_batch, database, table, before_ms))


def _prune_batch(database: Database, table: str, before_ms: int) -> int:
    rows = database.rows(  # what another prunes now is left to it
        f"SELECT r.id, {_COUNTED_AS[table]} FROM {table} r WHERE r.alias = %s AND r.ended_at < %s"
        f" ORDER BY r.ended_at LIMIT {BATCH}{database.dialect.skip_locked}",
        [database.alias, before_ms],
    )
    _forget(database, table, rows)
    return len(rows)


def _forget(database: Database, table: str, rows: Sequence[Row]) -> None:
    if rows:
        database.changed(f"DELETE FROM {table} WHERE id IN ({marks(len(rows))})", [pk for pk, _ in rows])
    for name, number in sorted(Counter(name for _, name in rows).items()):  # in one order: no deadlock
        count(database, name, number)
