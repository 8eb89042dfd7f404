"""Statements that not every database says alike: a module for each vendor."""

from collections.abc import Sequence
from typing import Protocol

from django_delayq.brokers.base import LeaseId, Put, Transition
from django_delayq.store import mysql, postgresql, sqlite
from django_delayq.store.database import Database, Row, Sql
from django_delayq.store.rows import Inserted


class Statements(Protocol):
    """What such a module has. Rows of the table `delayq_ready` are `r`.

    In `changes` no column may be read after it is set: to MySQL it has its new value by then.
    """

    def insert(self, database: Database, puts: Sequence[Put]) -> list[Inserted]:
        """Make rows of messages whose ids differ, and give those made: what waits or runs already is left as it is.

        In the order of ids, so that two of them can't deadlock.
        """

    def change(self, database: Database, changes: Sql, where: Sql, returning: str) -> list[Row]:
        """Set `changes` where a condition holds, once others are through with those rows. Gives columns as set.

        In the order of ids, so that two of them can't deadlock.
        """

    def change_unlocked(self, database: Database, changes: Sql, found: Sql, returning: str) -> list[Row]:
        """As `change`, of what is found (`found` is from FROM on), without what other transactions hold."""

    def change_given(self, database: Database, changes: str, given: Sql, where: str, returning: str) -> list[Row]:
        """As `change`, of rows under the ids of a table `given`, which `changes` and `where` may name."""

    def apply(self, database: Database, transitions: Sequence[Transition]) -> dict[LeaseId, bool]:
        """Write transitions of rows, of which no two are of one lease, without what other transactions hold.

        Returns the leases that still stood, each with whether anything was written: a lease that is interrupted already
        is not interrupted again.
        """

    def finish_here(self, database: Database, pk: int, token: int, started_ms: int) -> bool:
        """ready -> finish, at the end of the caller's transaction. False where the lease was lost.

        Waits for a transaction that has the row: a renewal, or a cancel that may be rolled back.
        """


_STATEMENTS: dict[str, Statements] = {"postgresql": postgresql, "sqlite": sqlite, "mysql": mysql}


def statements(database: Database) -> Statements:
    """The module for this database."""
    return _STATEMENTS[database.vendor]
