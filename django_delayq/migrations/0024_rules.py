"""Keep the rule that gave a message its due time (django_delayq/store/rules.py)."""

from django.db import migrations, models

import django_delayq.models.fields


class Migration(migrations.Migration):
    dependencies = [("delayq", "0023_schedules")]

    operations = [
        migrations.CreateModel(
            name="RuleRow",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("alias", django_delayq.models.fields.NameField(max_length=200, verbose_name="alias")),
                ("rule", models.TextField(verbose_name="rule")),
                ("due_at", django_delayq.models.fields.InstantField(verbose_name="due at")),
            ],
            options={
                "verbose_name": "rule of a due time",
                "verbose_name_plural": "rules of due times",
                "db_table": "delayq_rule",
            },
        ),
    ]
