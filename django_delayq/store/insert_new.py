"""Put messages that were not sent before: ids that wait, run, or have ended within the retention stay as they are."""

from collections.abc import Sequence

from django_delayq.brokers.base import BATCH, NewMessage, pages
from django_delayq.store import enqueue
from django_delayq.store.database import Database

_ENDED = ("delayq_finish", "delayq_error")


def put_once(database: Database, given: Sequence[NewMessage]) -> int:
    """Insert the messages whose id is in none of the three tables, in one transaction. Returns how many."""
    return database.transaction(lambda: sum(_put_page(database, page) for page in pages(given, BATCH)))


def _put_page(database: Database, given: Sequence[NewMessage]) -> int:
    ended = _ended(database, [put.id for put in given])
    placed, _ = enqueue.put(database, [put for put in given if put.id not in ended], "keep")
    created = [one.id for one in placed if one.created]
    return len(created) - _take_back(database, created)


def _take_back(database: Database, created: Sequence[str]) -> int:
    """Remove those of our new rows whose message ran at our first look and had ended before our insert.

    Nobody has seen these rows: they are not committed yet.
    """
    ended = sorted(_ended(database, created, database.dialect.newest))
    if ended:
        found = database.under_ids(ended, lock=database.dialect.lock)  # of an id, one that ended may be seen as well
        pks = database.among("id", [pk for (pk,) in database.rows(f"SELECT r.id FROM {found.text}", found.parameters)])
        database.changed(f"DELETE FROM delayq_ready WHERE {pks.text}", pks.parameters)
    return len(ended)


def _ended(database: Database, ids: Sequence[str], lock: str = "") -> set[str]:
    if not ids:
        return set()
    found = [database.under_ids(ids, lock=lock, table=table) for table in _ENDED]
    return {id for one in found for (id,) in database.rows(f"SELECT r.message_id FROM {one.text}", one.parameters)}
