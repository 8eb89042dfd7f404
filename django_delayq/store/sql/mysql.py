"""The statements of MySQL and MariaDB, where an UPDATE returns no rows: a change is a short transaction of three.

The statements that end a batch of leases are in moves.py, whose `apply` SQLite uses too.
"""

from collections.abc import Sequence
from functools import partial

from django.db import IntegrityError

from django_delayq.brokers.base import NewMessage
from django_delayq.store.database import Database, Row, Sql, marks
from django_delayq.store.sql.moves import apply as apply, finish_here as finish_here  # part of `Statements`
from django_delayq.store.sql.portable import Inserted, values_of
from django_delayq.store.sql.rows import SHARED

TRIES = 5
"""How often an insert is tried again without the ids that were there."""


def insert(database: Database, messages: Sequence[NewMessage]) -> list[Inserted]:
    """See `Statements`."""
    return database.transaction(partial(_insert, database, messages))


def change(database: Database, changes: Sql, found: Sql, returning: str) -> list[Row]:
    """See `Statements`."""
    return database.transaction(partial(_change, database, changes, found, returning))


def change_given(database: Database, changes: str, given: Sql, where: str, returning: str) -> list[Row]:
    """See `Statements`."""
    return database.transaction(partial(_change_given, database, changes, given, where, returning))


def _change_given(database: Database, changes: str, given: Sql, where: str, returning: str) -> list[Row]:
    locked = database.joined(given, database.of_ids(where), database.dialect.lock)
    pks = [pk for (pk,) in database.rows(f"SELECT r.id FROM {locked.text}", locked.parameters)]
    if not pks:
        return []
    of_pks = f"r.id IN ({marks(len(pks))})"
    found = database.joined(given, database.of_ids())
    database.changed(f"UPDATE {found.text} SET {changes} WHERE {of_pks}", [*found.parameters, *pks])
    return _as_set(database, returning, of_pks, pks)


def _change(database: Database, changes: Sql, found: Sql, returning: str) -> list[Row]:
    pks = [pk for (pk,) in database.rows(f"SELECT r.id FROM {found.text}", found.parameters)]
    if not pks:
        return []
    of_pks = f"r.id IN ({marks(len(pks))})"
    database.changed(f"UPDATE delayq_ready AS r SET {changes.text} WHERE {of_pks}", [*changes.parameters, *pks])
    return _as_set(database, returning, of_pks, pks)


def _as_set(database: Database, returning: str, of_pks: str, pks: Sequence[int]) -> list[Row]:
    """Return columns of rows that this transaction has just changed.

    MySQL does not count a row as changed that had the new values before. If another transaction wrote them, this one
    may not see them, so the newest version is read.
    """
    return database.rows(f"SELECT {returning} FROM delayq_ready r WHERE {of_pks}{database.dialect.newest}", pks)


def _insert(database: Database, messages: Sequence[NewMessage]) -> list[Inserted]:
    """Insert the messages whose ids are new.

    An INSERT that meets an id does nothing, and leaves the transaction as it was; IGNORE would hide other errors.
    """
    for _ in range(TRIES):
        if not messages:
            return []
        values, parameters = values_of(database, messages)
        try:
            database.changed(f"INSERT INTO delayq_ready ({SHARED}) VALUES {values}", parameters)
        except IntegrityError as error:
            refused = error
        else:
            return [Inserted(*row) for row in _rows_of(database, messages, "")]
        there = {id for id, *_ in _rows_of(database, messages, database.dialect.lock)}
        messages = [message for message in messages if message.id not in there]
    raise refused


def _rows_of(database: Database, messages: Sequence[NewMessage], lock: str) -> list[Row]:
    return database.rows(
        f"SELECT r.message_id, r.id, r.due_at, r.sent_at FROM delayq_ready r WHERE r.alias = %s"
        f" AND r.message_id IN ({marks(len(messages))}){lock}",
        [database.alias, *[message.id for message in messages]],
    )
