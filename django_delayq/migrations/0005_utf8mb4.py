"""Give the tables utf8mb4 on MySQL and MariaDB, where the database's own character set may lack emoji."""

from typing import Any

from django.db import migrations

from django_delayq.models.fields import COLLATIONS, database_name

TABLES = ("delayq_ready", "delayq_finish", "delayq_error", "delayq_limit")
"""The tables that have texts of handlers and of the site."""


def convert(apps: Any, schema_editor: Any) -> None:
    connection = schema_editor.connection
    if connection.vendor != "mysql":
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT table_name FROM information_schema.columns WHERE table_schema = DATABASE()"
            " AND table_name IN %s AND character_set_name <> 'utf8mb4'",
            [TABLES],
        )
        tables = [table for (table,) in cursor.fetchall()]
    for table in tables:  # the others are not rebuilt
        schema_editor.execute(
            f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {COLLATIONS[database_name(connection)]}"
        )


class Migration(migrations.Migration):
    atomic = False  # MySQL and MariaDB change no table in a transaction
    dependencies = [
        ("delayq", "0004_limits"),
    ]

    operations = [migrations.RunPython(convert, migrations.RunPython.noop)]
