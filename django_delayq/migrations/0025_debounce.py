"""Count the sends that were merged into a message, and keep the last one that was sent while it ran."""

from typing import Any

from django.db import migrations, models

import django_delayq.models.fields


class AddNullable(migrations.AddField):
    """An operation that adds a column without a value.

    On SQLite it does not copy the table, as Django may: that begins a new sequence of primary keys.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        if schema_editor.connection.vendor != "sqlite":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
        elif self.allow_migrate_model(schema_editor.connection.alias, model):
            kind, table = model._meta.get_field(self.name).db_type(schema_editor.connection), model._meta.db_table
            check = ' CHECK ("merged" >= 0)' if self.name == "merged" else ""
            schema_editor.execute(f'ALTER TABLE {table} ADD COLUMN "{self.name}" {kind} NULL{check}')


class Migration(migrations.Migration):
    dependencies = [("delayq", "0024_rules")]

    operations = [
        AddNullable(
            model_name="readymessage",
            name="first_at",
            field=django_delayq.models.fields.InstantField(null=True, verbose_name="first sent at"),
        ),
        AddNullable(
            model_name="readymessage",
            name="merged",
            field=models.PositiveIntegerField(null=True, verbose_name="merged sends"),
        ),
        AddNullable(
            model_name="readymessage",
            name="again",
            field=models.TextField(null=True, verbose_name="runs again with"),
        ),
    ]
