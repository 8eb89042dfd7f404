"""Keep the lanes of queues to which messages were sent (django_delayq/core/lanes.py)."""

from typing import Any

from django.db import migrations, models

import django_delayq.models.fields
from django_delayq.migrations._mysql import convert_to_utf8mb4


def convert(apps: Any, schema_editor: Any) -> None:
    convert_to_utf8mb4(schema_editor, ("delayq_lane",))


class Migration(migrations.Migration):
    dependencies = [("delayq", "0017_figure_at")]

    operations = [
        migrations.CreateModel(
            name="LaneRow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("alias", django_delayq.models.fields.NameField(max_length=200, verbose_name="alias")),
                ("name", django_delayq.models.fields.NameField(max_length=200, verbose_name="name")),
            ],
            options={"verbose_name": "lane", "verbose_name_plural": "lanes", "db_table": "delayq_lane"},
        ),
        migrations.RunPython(convert, migrations.RunPython.noop, atomic=False),  # MySQL: no table in a transaction
    ]
