"""Add the schedules: rules that recur (django_delayq/store/schedules.py)."""

from django.db import migrations, models

import django_delayq.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("delayq", "0022_open_messages"),
    ]

    operations = [
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("alias", django_delayq.models.fields.NameField(max_length=200, verbose_name="alias")),
                ("name", django_delayq.models.fields.NameField(max_length=200, verbose_name="name")),
                (
                    "origin",
                    models.CharField(
                        choices=[("code", "code"), ("call", "call"), ("admin", "admin")],
                        max_length=10,
                        verbose_name="origin",
                    ),
                ),
                ("key", django_delayq.models.fields.NameField(max_length=200, verbose_name="key")),
                ("header", models.TextField(verbose_name="header")),
                ("data", models.TextField(verbose_name="data")),
                ("rule", models.TextField(verbose_name="rule")),
                ("window", models.TextField(blank=True, verbose_name="window")),
                ("start_at", django_delayq.models.fields.InstantField(blank=True, null=True, verbose_name="start")),
                ("until_at", django_delayq.models.fields.InstantField(blank=True, null=True, verbose_name="until")),
                ("most", models.PositiveIntegerField(blank=True, null=True, verbose_name="most occurrences")),
                ("put_count", models.PositiveIntegerField(default=0, verbose_name="occurrences so far")),
                ("catch_up", models.CharField(max_length=10, verbose_name="catch-up")),
                ("overlap", models.CharField(max_length=10, verbose_name="overlap")),
                ("last_at", django_delayq.models.fields.InstantField(null=True, verbose_name="last occurrence")),
                ("message_id", django_delayq.models.fields.NameField(max_length=200, verbose_name="id of its message")),
                ("look_at", django_delayq.models.fields.InstantField(null=True, verbose_name="looked at again")),
                ("paused_at", django_delayq.models.fields.InstantField(null=True, verbose_name="paused at")),
                ("reason", django_delayq.models.fields.NameField(blank=True, max_length=200, verbose_name="reason")),
                ("gone_at", django_delayq.models.fields.InstantField(null=True, verbose_name="not in the code since")),
                ("error", models.TextField(blank=True, verbose_name="error")),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "db_table": "delayq_schedule",
                "permissions": [
                    ("pause_schedule", "Can pause and resume schedules"),
                    ("run_schedule", "Can run occurrences of schedules"),
                ],
                "indexes": [models.Index(fields=["alias", "look_at"], name="delayq_schedule_look")],
                "constraints": [models.UniqueConstraint(fields=("name", "alias"), name="delayq_schedule_name")],
            },
        ),
    ]
