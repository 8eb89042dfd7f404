"""Remove every row of some messages for an erasure, even if they have ended. Running messages stay, and are listed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from django_delayq.brokers.base import BATCH, pages
from django_delayq.store import returned, tags
from django_delayq.store.database import Database, in_transaction
from django_delayq.store.operations import remove, remove_for_good
from django_delayq.store.sql.dialect import WAITING
from django_delayq.store.sql.stepwise import count

TABLES = {"waiting": "delayq_ready", "finished": "delayq_finish", "failed": "delayq_error"}
"""The tables in the order in which a message passes through them."""

PASSES = 3
"""How often to look again for messages that moved on to another table while they were removed."""


class _Found(NamedTuple):
    pk: int
    id: str


@dataclass(slots=True)
class Forgotten:
    """The counts of removed rows by state, the ids of these rows, and the ids of what runs and was left."""

    counts: Counter[str] = field(default_factory=Counter)
    ids: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)


def forget(database: Database, ids: Sequence[str], tag: str | None = None) -> Forgotten:
    """Remove the messages under these ids, and those with the tag, a batch at a time, and count them in the tally.

    What operators changed in their payloads, and what tasks returned, goes with them.
    """
    forgotten = Forgotten()
    for _pass in range(PASSES):
        moved = {
            state: _remove_all(database, table, _found(database, table, ids, tag)) for state, table in TABLES.items()
        }
        forgotten.counts.update({state: len(rows) for state, rows in moved.items()})
        forgotten.ids.update(row.id for rows in moved.values() for row in rows)
        if not any(moved.values()):
            break
    if tag is not None:
        tags.forget(database, tag)
    returned.forget(database, sorted(forgotten.ids.union(ids)))
    forgotten.running = {row.id for row in _found(database, TABLES["waiting"], ids, tag)}
    return forgotten


def _found(database: Database, table: str, ids: Sequence[str], tag: str | None) -> list[_Found]:
    named = [database.dialect.under_ids(database.alias, page, table=table) for page in pages(ids, BATCH)]
    if tag is not None:
        named.append(tags.rows_with(database, tag, table=table))
    rows = (
        row for each in named for row in database.rows(f"SELECT r.id, r.message_id FROM {each.text}", each.parameters)
    )
    return list(dict.fromkeys(_Found(*row) for row in rows))


def _remove_all(database: Database, table: str, rows: Iterable[_Found]) -> list[_Found]:
    return [row for page in pages(list(rows), BATCH) for row in _remove(database, table, page)]


@in_transaction
def _remove(database: Database, table: str, rows: Sequence[_Found]) -> list[_Found]:
    """Remove the rows that are still in the table and don't run. Return them."""
    of_pks = database.dialect.among("r.id", sorted(row.pk for row in rows))
    condition = f" AND {WAITING}" if table == TABLES["waiting"] else ""
    locked = database.rows(
        f"SELECT r.id FROM {table} r WHERE {of_pks.text}{condition}{database.dialect.lock}", of_pks.parameters
    )
    pks = sorted(pk for (pk,) in locked)
    if table == TABLES["waiting"]:
        remove_for_good(database, pks, table)
        count(database, "purged", len(pks))
    else:
        remove(database, table, pks)
    return [row for row in rows if row.pk in set(pks)]
