"""Rows from one table to another: each pk is in one of them at any time, since it moves within one transaction."""

from collections.abc import Sequence

from django_delayq.store.database import Database, marks
from django_delayq.store.rows import SHARED


def end(database: Database, pks: Sequence[int], outcome: str) -> None:
    """ready -> finish, of rows that the caller's transaction has locked."""
    if pks:
        database.changed(
            f"INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at)"
            f" SELECT id, {SHARED}, %s, {database.dialect.now} FROM delayq_ready WHERE id IN ({marks(len(pks))})",
            [outcome, *pks],
        )
        _remove(database, pks)


def bury(database: Database, pk: int, error: str, detail: str = "", failures: int = 0) -> None:
    """ready -> error, of a row that the caller's transaction has locked."""
    columns = SHARED.replace(", failures", "").replace(", error", "")
    database.changed(
        f"INSERT INTO delayq_error (id, {columns}, failures, error, detail, ended_at)"
        f" SELECT id, {columns}, failures + %s, %s, %s, {database.dialect.now} FROM delayq_ready WHERE id = %s",
        [failures, storable(error), storable(detail), pk],
    )
    _remove(database, [pk])


def storable(text: str) -> str:
    """Text without what PostgreSQL can't keep."""
    return text.replace("\0", "\\x00")


def count(database: Database, name: str, number: int) -> None:
    """Add to the tally of what is removed for good."""
    if number:
        database.changed(
            "INSERT INTO delayq_tally (alias, name, count) VALUES (%s, %s, %s)"
            " ON CONFLICT (alias, name) DO UPDATE SET count = delayq_tally.count + excluded.count",
            [database.alias, name, number],
        )


def _remove(database: Database, pks: Sequence[int]) -> None:
    database.changed(f"DELETE FROM delayq_ready WHERE id IN ({marks(len(pks))})", list(pks))
