"""Statements that not every database says alike: a module each for those that do."""

from collections.abc import Sequence
from typing import Protocol

from django_delayq.brokers.base import Put
from django_delayq.store import portable, postgresql
from django_delayq.store.database import Database
from django_delayq.store.rows import Inserted


class Statements(Protocol):
    """What such a module has."""

    def insert(self, database: Database, puts: Sequence[Put]) -> list[Inserted]:
        """Make rows of messages whose ids differ, and give those made: what waits or runs already is left as it is.

        In the order of ids, so that two of them can't deadlock.
        """


def statements(database: Database) -> Statements:
    """The module for this database."""
    return postgresql if database.connection.vendor == "postgresql" else portable
