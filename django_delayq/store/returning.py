"""Changes of rows where an UPDATE gives back what it changed: PostgreSQL and SQLite."""

from django_delayq.store.database import Database, Row, Sql


def change(database: Database, changes: Sql, where: Sql, returning: str) -> list[Row]:
    """See `Statements`."""
    return database.rows(
        f"UPDATE delayq_ready AS r SET {changes.text} WHERE {where.text} RETURNING {returning}",
        [*changes.parameters, *where.parameters],
    )


def change_unlocked(database: Database, changes: Sql, found: Sql, returning: str) -> list[Row]:
    """See `Statements`."""
    return database.rows(
        f"WITH found AS (SELECT r.id FROM {found.text}{database.dialect.skip_locked})"
        f" UPDATE delayq_ready AS r SET {changes.text} WHERE r.id IN (SELECT id FROM found) RETURNING {returning}",
        [*found.parameters, *changes.parameters],
    )
