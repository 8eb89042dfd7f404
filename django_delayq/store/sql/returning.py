"""Write rows where a statement can return what it wrote: PostgreSQL and SQLite."""

from collections.abc import Sequence

from django_delayq.brokers.base import NewMessage
from django_delayq.store.database import Database, Row, Sql
from django_delayq.store.sql.new_rows import values_of
from django_delayq.store.sql.rows import NEW, Inserted


def insert(database: Database, puts: Sequence[NewMessage]) -> list[Inserted]:
    """See `Statements`."""
    values, parameters = values_of(database, puts)
    rows = database.rows(
        f"INSERT INTO delayq_ready ({NEW}) VALUES {values}"
        f" {database.dialect.unless_there} RETURNING message_id, id, due_at, sent_at",
        parameters,
    )
    return [Inserted(*row) for row in rows]


def change(database: Database, changes: Sql, found: Sql, returning: str) -> list[Row]:
    """See `Statements`."""
    of_found = database.dialect.found_in.format(column="r.id", pk="id", found="found")
    return database.rows(
        f"WITH found AS (SELECT r.id FROM {found.text})"
        f" UPDATE delayq_ready AS r SET {changes.text} WHERE {of_found} RETURNING {returning}",
        [*found.parameters, *changes.parameters],
    )


def change_given(database: Database, changes: str, given: Sql, where: str, returning: str) -> list[Row]:
    """See `Statements`."""
    found = database.joined(given, database.of_ids(where), database.dialect.lock)
    of_given = database.dialect.found_in.format(column="r.id", pk="pk", found="given")
    return database.rows(
        f"WITH given AS (SELECT given.*, r.id AS pk FROM {found.text})"
        f" UPDATE delayq_ready AS r SET {changes} FROM given WHERE {of_given} AND r.id = given.pk"
        f" RETURNING {returning}",
        found.parameters,
    )
