"""The statements that databases spell differently: a module for each vendor; two share what is in moves.py."""

from collections.abc import Sequence
from typing import Protocol

from django_delayq.brokers.base import LeaseId, NewMessage, Transition
from django_delayq.store.database import Database, Row, Sql
from django_delayq.store.sql import mysql, portable, postgresql
from django_delayq.store.sql.portable import Inserted


class Statements(Protocol):
    """The functions that the module of each vendor has. In their SQL, rows of the table `delayq_ready` are `r`.

    In `changes` no column may be read after it is set: MySQL would read its new value.
    """

    def insert(self, database: Database, messages: Sequence[NewMessage]) -> list[Inserted]:
        """Make rows of messages whose ids differ, and return those made. Messages that wait or run stay as they are.

        In the order of ids, so that two inserts can't deadlock.
        """

    def change(self, database: Database, changes: Sql, found: Sql, returning: str) -> list[Row]:
        """Set `changes` in the rows `r` of `found`, and return their columns `returning` with the new values.

        `found` is the end of a SELECT, from the table's name to the lock. The lock says whether to wait for rows that
        other transactions hold.
        """

    def change_given(self, database: Database, changes: str, given: Sql, where: str, returning: str) -> list[Row]:
        """Set `changes` in the rows whose ids are in the table `given`, and return columns as `change` does.

        `changes` and `where` may name the columns of `given`. It is in the order of ids, so that two changes can't
        deadlock. Waits for rows that other transactions hold.
        """

    def apply(self, database: Database, transitions: Sequence[Transition]) -> dict[LeaseId, bool]:
        """Write transitions, no two of one lease, except those of rows that other transactions hold.

        Return the leases that still stood, each with whether anything was written: a lease that is interrupted already
        is not interrupted again.
        """

    def finish_here(self, database: Database, pk: int, token: int, started_ms: int) -> bool:
        """Move the row from ready to finish, at the end of the caller's transaction. Return False for a lost lease.

        Waits for a transaction that has the row: a renewal, or a cancel that may be rolled back.
        """


_STATEMENTS: dict[str, Statements] = {"postgresql": postgresql, "sqlite": portable, "mysql": mysql}


def statements(database: Database) -> Statements:
    """Return the module for this database."""
    return _STATEMENTS[database.vendor]
