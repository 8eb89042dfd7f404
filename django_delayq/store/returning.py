"""Change rows where an UPDATE can return what it changed: PostgreSQL and SQLite."""

from django_delayq.store.database import Database, Row, Sql
from django_delayq.store.rows import OF_GIVEN


def change(database: Database, changes: Sql, where: Sql, returning: str) -> list[Row]:
    """See `Statements`."""
    found = Sql(f"delayq_ready r WHERE {where.text} ORDER BY r.message_id", where.parameters)
    return _change(database, changes, found, database.dialect.lock, returning)


def change_unlocked(database: Database, changes: Sql, found: Sql, returning: str) -> list[Row]:
    """See `Statements`."""
    return _change(database, changes, found, database.dialect.skip_locked, returning)


def _change(database: Database, changes: Sql, found: Sql, lock: str, returning: str) -> list[Row]:
    return database.rows(
        f"WITH found AS (SELECT r.id FROM {found.text}{lock})"
        f" UPDATE delayq_ready AS r SET {changes.text} WHERE r.id IN (SELECT id FROM found) RETURNING {returning}",
        [*found.parameters, *changes.parameters],
    )


def change_given(database: Database, changes: str, given: Sql, where: str, returning: str) -> list[Row]:
    """See `Statements`."""
    return database.rows(
        f"WITH given AS (SELECT given.*, r.id AS pk FROM {given.text} {OF_GIVEN} WHERE {where}"
        f" ORDER BY r.message_id{database.dialect.lock})"
        f" UPDATE delayq_ready AS r SET {changes} FROM given WHERE r.id = given.pk RETURNING {returning}",
        [*given.parameters, database.alias],
    )
