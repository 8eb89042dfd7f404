"""Add the bulk actions that can be undone, and what puts their messages back (django_delayq/store/undo.py)."""

from django.db import migrations, models

import django_delayq.models.fields


class Migration(migrations.Migration):
    dependencies = [("delayq", "0028_running_control")]

    operations = [
        migrations.CreateModel(
            name="ActionRow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("alias", django_delayq.models.fields.NameField(max_length=200, verbose_name="alias")),
                ("name", django_delayq.models.fields.NameField(max_length=200, verbose_name="name")),
                ("kind", models.CharField(max_length=20, verbose_name="kind")),
                ("by", django_delayq.models.fields.NameField(blank=True, max_length=200, verbose_name="by")),
                ("acted_at", django_delayq.models.fields.InstantField(verbose_name="acted at")),
                ("undone_at", django_delayq.models.fields.InstantField(null=True, verbose_name="undone at")),
                (
                    "undone_by",
                    django_delayq.models.fields.NameField(blank=True, max_length=200, verbose_name="undone by"),
                ),
            ],
            options={
                "verbose_name": "bulk action",
                "verbose_name_plural": "bulk actions",
                "db_table": "delayq_action",
                "indexes": [models.Index(fields=["alias", "acted_at"], name="delayq_action_acted")],
                "constraints": [models.UniqueConstraint(fields=("name", "alias"), name="delayq_action_name")],
            },
        ),
        migrations.CreateModel(
            name="UndoRow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("action_pk", models.BigIntegerField(verbose_name="action's row")),
                ("message_pk", models.BigIntegerField(verbose_name="message's row")),
                ("due_at", django_delayq.models.fields.InstantField(null=True, verbose_name="due at")),
                ("sent_at", django_delayq.models.fields.InstantField(null=True, verbose_name="sent at")),
                ("attempts", models.PositiveIntegerField(default=0, verbose_name="failures and crashes")),
                ("was_due_at", django_delayq.models.fields.InstantField(null=True, verbose_name="was due at")),
                (
                    "was_scheduled_at",
                    django_delayq.models.fields.InstantField(null=True, verbose_name="was scheduled at"),
                ),
            ],
            options={
                "verbose_name": "message of a bulk action",
                "verbose_name_plural": "messages of bulk actions",
                "db_table": "delayq_undo",
                "constraints": [models.UniqueConstraint(fields=("action_pk", "message_pk"), name="delayq_undo_of")],
            },
        ),
    ]
