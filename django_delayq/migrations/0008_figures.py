"""The figures of workers, by queue and key. The number of buckets is that of django_delayq/core/figures.py."""

from django.db import migrations, models

import django_delayq.models.fields

COUNTS = (
    *("finished", "failed", "retried", "snoozed", "buried"),
    *("ran_ms", *(f"ran_{bucket}" for bucket in range(13))),
    *("late_ms", *(f"late_{bucket}" for bucket in range(13))),
)


class Migration(migrations.Migration):
    dependencies = [
        ("delayq", "0007_interrupted"),
    ]

    operations = [
        migrations.CreateModel(
            name="FigureRow",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("alias", django_delayq.models.fields.NameField(max_length=200, verbose_name="alias")),
                (
                    "period",
                    models.CharField(
                        choices=[
                            ("new", "New"),
                            ("minute", "Minute"),
                            ("hour", "Hour"),
                            ("day", "Day"),
                            ("total", "Total"),
                        ],
                        max_length=6,
                        verbose_name="period",
                    ),
                ),
                ("at", django_delayq.models.fields.InstantField(verbose_name="at")),
                ("queue", django_delayq.models.fields.NameField(max_length=200, verbose_name="queue")),
                ("key", django_delayq.models.fields.NameField(max_length=200, verbose_name="key")),
                *((name, models.BigIntegerField(verbose_name=name)) for name in COUNTS),
            ],
            options={
                "verbose_name": "figures of a queue and key",
                "verbose_name_plural": "figures of queues and keys",
                "db_table": "delayq_figure",
                "indexes": [models.Index(fields=["alias", "period", "at"], name="delayq_figure_at")],
            },
        ),
    ]
