"""The statements that databases spell differently: a module for each vendor, and stepwise.py, which two share."""

from collections.abc import Sequence
from typing import Protocol

from django_delayq.brokers.base import LeaseId, NewMessage, Transition
from django_delayq.store.database import Database, Row, Sql
from django_delayq.store.sql import mysql, portable, postgresql
from django_delayq.store.sql.portable import Inserted


class Statements(Protocol):
    """The functions of such a module. Rows of the table `delayq_ready` are `r`.

    In `changes` no column may be read after it is set: MySQL would read its new value.
    """

    def insert(self, database: Database, messages: Sequence[NewMessage]) -> list[Inserted]:
        """Make rows of messages whose ids differ, and return those made. Messages that wait or run stay as they are.

        In the order of ids, so that two inserts can't deadlock.
        """

    def change(self, database: Database, changes: Sql, found: Sql, returning: str) -> list[Row]:
        """Set `changes` in the rows `r` of `found`, and return columns as set.

        `found` is what comes from FROM on, with its lock at the end. It tells whether rows that other transactions hold
        are waited for.
        """

    def change_given(self, database: Database, changes: str, given: Sql, where: str, returning: str) -> list[Row]:
        """Change as `change` does, the rows under the ids of a table `given`, which `changes` and `where` may name.

        It is in the order of ids, so that two changes can't deadlock. Waits for others to release the rows.
        """

    def apply(self, database: Database, transitions: Sequence[Transition]) -> dict[LeaseId, bool]:
        """Write transitions, no two of one lease, except those of rows that other transactions hold.

        Return the leases that still stood, each with whether anything was written: a lease that is interrupted already
        is not interrupted again.
        """

    def finish_here(self, database: Database, pk: int, token: int, started_ms: int) -> bool:
        """Move the row from ready to finish, at the end of the caller's transaction. False where the lease was lost.

        Waits for a transaction that has the row: a renewal, or a cancel that may be rolled back.
        """


_STATEMENTS: dict[str, Statements] = {"postgresql": postgresql, "sqlite": portable, "mysql": mysql}


def statements(database: Database) -> Statements:
    """Return the module for this database."""
    return _STATEMENTS[database.vendor]
