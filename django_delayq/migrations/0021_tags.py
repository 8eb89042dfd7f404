"""Give a message more tags than the one in its row (django_delayq/store/tags.py)."""

from django.db import migrations, models

import django_delayq.models.fields


class Migration(migrations.Migration):
    dependencies = [("delayq", "0020_limit_looked")]

    operations = [
        migrations.CreateModel(
            name="TagRow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("alias", django_delayq.models.fields.NameField(max_length=200, verbose_name="alias")),
                ("tag", django_delayq.models.fields.NameField(max_length=200, verbose_name="tag")),
                ("message_pk", models.BigIntegerField(verbose_name="message's row")),
            ],
            options={
                "verbose_name": "further tag",
                "verbose_name_plural": "further tags",
                "db_table": "delayq_tag",
                "indexes": [models.Index(fields=["message_pk"], name="delayq_tag_of")],
                "constraints": [
                    models.UniqueConstraint(fields=("tag", "alias", "message_pk"), name="delayq_tag_names")
                ],
            },
        ),
    ]
