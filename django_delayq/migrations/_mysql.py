"""The character set of tables on MySQL and MariaDB, where the database's own may lack emoji."""

from collections.abc import Sequence
from typing import Any

from django_delayq.models.fields import COLLATIONS, database_name


def convert_to_utf8mb4(schema_editor: Any, tables: Sequence[str]) -> None:
    """Give these tables utf8mb4. Those that have it already are not rebuilt, and other databases are left alone."""
    connection = schema_editor.connection
    if connection.vendor != "mysql":
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT table_name FROM information_schema.columns WHERE table_schema = DATABASE()"
            " AND table_name IN %s AND character_set_name <> 'utf8mb4'",
            [tables],
        )
        found = [table for (table,) in cursor.fetchall()]
    for table in found:
        schema_editor.execute(
            f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {COLLATIONS[database_name(connection)]}"
        )
