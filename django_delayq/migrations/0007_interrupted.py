"""Make `interrupted` a column, which was a "!" before the worker's name, and let no token be negative.

A negative token said that the row was moved after its lease had run out, and that its attempt is still to be counted.
"""

from typing import Any

from django.db import migrations, models

from django_delayq.core.history import Ended, PastAttempt, add
from django_delayq.support.timestamps import to_epoch_ms

MARK = "!"
SUSPECT_CRASHES = 2


class AddColumn(migrations.AddField):
    """An operation that adds a column, unless it is there.

    On SQLite it does not copy the table, as Django would: that begins a new sequence of primary keys. If the column is
    there, an earlier run was cut off while it converted rows, and this one goes on.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model) or self._is_there(schema_editor, model):
            return
        if schema_editor.connection.vendor == "sqlite":
            schema_editor.execute(f"ALTER TABLE {model._meta.db_table} ADD COLUMN {self.name} bool DEFAULT 0 NOT NULL")
        else:
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def _is_there(self, schema_editor: Any, model: Any) -> bool:
        if schema_editor.collect_sql:  # sqlmigrate: there may be no table yet
            return False
        connection = schema_editor.connection
        with connection.cursor() as cursor:
            columns = connection.introspection.get_table_description(cursor, model._meta.db_table)
        return self.name in {column.name for column in columns}


def convert(apps: Any, schema_editor: Any) -> None:
    """Move the marks in tokens and worker names into columns.

    Few rows have any. A row that another session has changed since it was read is left alone.
    """
    rows = apps.get_model("delayq", "ReadyMessage").objects.using(schema_editor.connection.alias)
    for row in rows.filter(token__lt=0).defer("data"):
        rows.filter(pk=row.pk, token=row.token).update(**_waiting(row))
    for row in rows.filter(token__isnull=False, worker__startswith=MARK).defer("data"):
        unmarked = {"interrupted": True, "worker": row.worker.removeprefix(MARK)}
        rows.filter(pk=row.pk, token=row.token, worker=row.worker).update(**unmarked)


def mark(apps: Any, schema_editor: Any) -> None:
    """Write the mark before the worker's name again, for a migration backwards."""
    rows = apps.get_model("delayq", "ReadyMessage").objects.using(schema_editor.connection.alias)
    for row in rows.filter(token__isnull=False, interrupted=True).defer("data"):
        rows.filter(pk=row.pk, token=row.token).update(worker=f"{MARK}{row.worker}")


def _waiting(row: Any) -> dict[str, Any]:
    """Return the new values of a row whose attempt is counted now, as a reclaim would have done."""
    interrupted = row.worker.startswith(MARK)
    attempt = PastAttempt(
        row.failures + 1,
        row.started_at and to_epoch_ms(row.started_at),
        to_epoch_ms(row.lease_until),
        row.worker.removeprefix(MARK),
        Ended.INTERRUPTED if interrupted else Ended.LOST,
    )
    return {
        "token": None,
        "lease_until": None,
        "worker": "",
        "started_at": None,
        "crashes": row.crashes if interrupted else min(row.crashes + 1, SUSPECT_CRASHES),
        "history": add(row.history, attempt),
    }


class Migration(migrations.Migration):
    atomic = False  # the lock on the table, on PostgreSQL, must not last while rows are read
    dependencies = [
        ("delayq", "0006_store_identity"),
    ]

    operations = [
        AddColumn(
            model_name="readymessage",
            name="interrupted",
            field=models.BooleanField(db_default=False, verbose_name="interrupted"),
        ),
        migrations.RunPython(convert, mark),
    ]
