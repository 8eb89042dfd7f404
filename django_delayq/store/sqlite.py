"""SQLite: one statement for each move, and one writer at a time, so that no row is ever locked and to be skipped."""

from collections.abc import Sequence

from django_delayq.brokers.base import NewMessage
from django_delayq.store.apply import apply as apply, finish_here as finish_here  # part of `Statements`
from django_delayq.store.database import Database
from django_delayq.store.returning import (  # part of `Statements`
    change as change,
    change_given as change_given,
    change_unlocked as change_unlocked,
)
from django_delayq.store.rows import NEW, Inserted
from django_delayq.store.values import values_of


def insert(database: Database, puts: Sequence[NewMessage]) -> list[Inserted]:
    """See `Statements`."""
    values, parameters = values_of(database, puts)
    rows = database.rows(
        f"INSERT INTO delayq_ready ({NEW}) VALUES {values}"
        " ON CONFLICT (alias, message_id) DO NOTHING RETURNING message_id, id, due_at, sent_at",
        parameters,
    )
    return [Inserted(*row) for row in rows]
