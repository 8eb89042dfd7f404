"""Put messages that were not sent before: ids that wait, run, or have ended within the retention stay as they are."""

from collections.abc import Sequence

from django_delayq.brokers.base import BATCH, NewMessage, pages
from django_delayq.store import puts
from django_delayq.store.database import Database, marks

_ENDED = ("delayq_finish", "delayq_error")


def put_once(database: Database, given: Sequence[NewMessage]) -> int:
    """Insert the messages whose id is in none of the three tables, in one transaction. Returns how many."""
    return database.transaction(lambda: sum(_put_page(database, page) for page in pages(given, BATCH)))


def _put_page(database: Database, given: Sequence[NewMessage]) -> int:
    ended = _ended(database, [put.id for put in given])
    placed, _ = puts.put(database, [put for put in given if put.id not in ended], "keep")
    created = [one.id for one in placed if one.created]
    return len(created) - _take_back(database, created)


def _take_back(database: Database, created: Sequence[str]) -> int:
    """Remove those of our new rows whose message ran at our first look and had ended before our insert.

    Nobody has seen these rows: they are not committed yet.
    """
    ended = sorted(_ended(database, created, database.dialect.newest))
    if ended:
        database.changed(
            f"DELETE FROM delayq_ready WHERE alias = %s AND message_id IN ({marks(len(ended))})",
            [database.alias, *ended],
        )
    return len(ended)


def _ended(database: Database, ids: Sequence[str], lock: str = "") -> set[str]:
    if not ids:
        return set()
    of_ids = f"alias = %s AND message_id IN ({marks(len(ids))}){lock}"
    return {
        id
        for table in _ENDED
        for (id,) in database.rows(f"SELECT message_id FROM {table} WHERE {of_ids}", [database.alias, *ids])
    }
