"""SQL of migrations for PostgreSQL alone."""

from typing import Any

from django.db import migrations


class PostgresSQL(migrations.RunSQL):
    """SQL for PostgreSQL alone."""

    def database_forwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_forwards(app_label, schema_editor, *states)

    def database_backwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_backwards(app_label, schema_editor, *states)
