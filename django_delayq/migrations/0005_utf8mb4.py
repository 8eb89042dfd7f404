"""Give the tables utf8mb4 on MySQL and MariaDB, where the database's own character set may lack emoji."""

from typing import Any

from django.db import migrations

from django_delayq.migrations._mysql import convert_to_utf8mb4

TABLES = ("delayq_ready", "delayq_finish", "delayq_error", "delayq_limit")
"""The tables that have texts of handlers and of the site."""


def convert(apps: Any, schema_editor: Any) -> None:
    convert_to_utf8mb4(schema_editor, TABLES)


class Migration(migrations.Migration):
    atomic = False  # MySQL and MariaDB change no table in a transaction
    dependencies = [
        ("delayq", "0004_limits"),
    ]

    operations = [migrations.RunPython(convert, migrations.RunPython.noop)]
