"""Number the versions of a limit's row, and give heartbeats a table of their own.

While another session keeps a transaction open, PostgreSQL keeps every earlier version of a row. With the version in the
index, the newest is found without them. No other index begins with the alias, so that PostgreSQL does not choose it.
"""

from typing import Any

from django.db import migrations, models

import django_delayq.models.fields
from django_delayq.migrations._mysql import convert_to_utf8mb4


def convert(apps: Any, schema_editor: Any) -> None:
    convert_to_utf8mb4(schema_editor, ("delayq_heartbeat",))


def forget_all(apps: Any, schema_editor: Any) -> None:
    """Delete the rows of `delayq_limit`, because of one name there may be several. What still runs writes them anew."""
    apps.get_model("delayq", "LimitRow").objects.using(schema_editor.connection.alias).all().delete()


class Migration(migrations.Migration):
    dependencies = [("delayq", "0015_returned_values")]

    operations = [
        migrations.RunPython(migrations.RunPython.noop, forget_all),
        migrations.AddField(
            model_name="limitrow",
            name="version",
            field=models.BigIntegerField(verbose_name="version", default=0, db_default=0),
        ),
        migrations.RemoveConstraint(model_name="limitrow", name="delayq_limit_names"),
        migrations.AddConstraint(
            model_name="limitrow",
            constraint=models.UniqueConstraint(fields=("alias", "key", "value", "version"), name="delayq_limit_names"),
        ),
        migrations.RemoveIndex(model_name="limitrow", name="delayq_limit_over"),
        migrations.AddIndex(model_name="limitrow", index=models.Index(fields=["over_ms"], name="delayq_limit_over")),
        migrations.CreateModel(
            name="HeartbeatRow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("alias", django_delayq.models.fields.NameField(max_length=200, verbose_name="alias")),
                ("worker", django_delayq.models.fields.NameField(max_length=200, verbose_name="worker")),
                ("info", models.TextField(verbose_name="info")),
                ("seen_ms", models.BigIntegerField(verbose_name="seen")),
            ],
            options={
                "verbose_name": "heartbeat",
                "verbose_name_plural": "heartbeats",
                "db_table": "delayq_heartbeat",
                "indexes": [models.Index(fields=["alias", "seen_ms"], name="delayq_heartbeat_seen")],
            },
        ),
        migrations.RunPython(convert, migrations.RunPython.noop, atomic=False),  # MySQL: no table in a transaction
    ]
