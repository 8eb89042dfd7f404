"""Remove the index of `placed`, which nothing uses any more. The column stays, because the release before writes it."""

from typing import Any

from django.db import migrations, models


class GiveDefault(migrations.AlterField):
    """An operation that gives a column a default.

    On SQLite it does not copy the table, as Django would: that begins a new sequence of primary keys.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor != "sqlite":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            table = model._meta.db_table
            schema_editor.execute(f"ALTER TABLE {table} DROP COLUMN {self.name}")  # SQLite changes no column
            schema_editor.execute(f"ALTER TABLE {table} ADD COLUMN {self.name} bool DEFAULT 0 NOT NULL")

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor != "sqlite":  # a default that is left there does no harm
            super().database_backwards(app_label, schema_editor, from_state, to_state)


class Migration(migrations.Migration):
    dependencies = [
        ("delayq", "0008_figures"),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name="readymessage",
            name="delayq_ready_unplaced",
        ),
        GiveDefault(
            model_name="readymessage",
            name="placed",
            field=models.BooleanField(db_default=False, verbose_name="placed"),
        ),
    ]
