"""The SQL of the store: what each database spells its own way, and what statements share."""

from django_delayq.store.sql.dialect import Dialect
from django_delayq.store.sql.mysql import MariaDB, MySQL
from django_delayq.store.sql.postgresql import PostgreSQL
from django_delayq.store.sql.sqlite import SQLite

__all__ = ["DIALECTS", "SQLite"]

DIALECTS: dict[str, Dialect] = {
    "mariadb": MariaDB(),
    "mysql": MySQL(),
    "postgresql": PostgreSQL(),
    "sqlite": SQLite(),
}
"""The dialects, by the name that `database_name` returns."""
