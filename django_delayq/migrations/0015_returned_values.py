"""Keep what tasks return (django_delayq/tasks.py)."""

from django.db import migrations, models

import django_delayq.models.fields


class Migration(migrations.Migration):
    dependencies = [("delayq", "0014_payload_differences")]

    operations = [
        migrations.CreateModel(
            name="ReturnedValue",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("alias", django_delayq.models.fields.NameField(max_length=200, verbose_name="alias")),
                ("message_id", django_delayq.models.fields.NameField(max_length=200, verbose_name="id")),
                ("value", models.TextField(verbose_name="returned value")),
                ("returned_at", django_delayq.models.fields.InstantField(verbose_name="returned at")),
            ],
            options={
                "verbose_name": "returned value",
                "verbose_name_plural": "returned values",
                "db_table": "delayq_returned",
                "indexes": [models.Index(fields=["alias", "returned_at"], name="delayq_returned_at")],
                "constraints": [models.UniqueConstraint(fields=("alias", "message_id"), name="delayq_returned_id")],
            },
        ),
    ]
