"""A table for what operators changed in payloads, which was kept for ever in Django's log."""

from typing import Any

from django.db import migrations, models

import django_delayq.models.fields
from django_delayq.migrations._mysql import convert_to_utf8mb4


def convert(apps: Any, schema_editor: Any) -> None:
    convert_to_utf8mb4(schema_editor, ("delayq_difference",))


class Migration(migrations.Migration):
    dependencies = [("delayq", "0013_view_error")]

    operations = [
        migrations.CreateModel(
            name="PayloadDifference",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("alias", django_delayq.models.fields.NameField(max_length=200, verbose_name="alias")),
                ("message_id", django_delayq.models.fields.NameField(max_length=200, verbose_name="id")),
                ("message_pk", models.BigIntegerField(verbose_name="message's row")),
                ("at", django_delayq.models.fields.InstantField(verbose_name="at")),
                ("who", django_delayq.models.fields.NameField(max_length=200, verbose_name="who")),
                ("mark", models.CharField(max_length=32, verbose_name="mark")),
                ("difference", models.TextField(verbose_name="difference")),
            ],
            options={
                "verbose_name": "change of a payload",
                "verbose_name_plural": "changes of payloads",
                "db_table": "delayq_difference",
                "indexes": [models.Index(fields=["message_pk"], name="delayq_difference_of")],
            },
        ),
        migrations.RunPython(
            convert, migrations.RunPython.noop, atomic=False
        ),  # MySQL changes no table in a transaction,
    ]
