"""Add the sequences that are under way, and the batches that are not done (django_delayq/store/)."""

from django.db import migrations, models

import django_delayq.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("delayq", "0026_version"),
    ]

    operations = [
        migrations.CreateModel(
            name="BatchRow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("alias", django_delayq.models.fields.NameField(max_length=200, verbose_name="alias")),
                ("batch_id", django_delayq.models.fields.NameField(max_length=200, verbose_name="id")),
                ("header", models.TextField(verbose_name="header")),
                ("data", models.TextField(verbose_name="data")),
                ("total", models.PositiveIntegerField(verbose_name="members")),
                ("look_at", django_delayq.models.fields.InstantField(verbose_name="looked at again")),
            ],
            options={
                "verbose_name": "batch",
                "verbose_name_plural": "batches",
                "db_table": "delayq_batch",
                "indexes": [models.Index(fields=["alias", "look_at"], name="delayq_batch_look")],
                "constraints": [models.UniqueConstraint(fields=("batch_id", "alias"), name="delayq_batch_id")],
            },
        ),
        migrations.CreateModel(
            name="SequenceRow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("alias", django_delayq.models.fields.NameField(max_length=200, verbose_name="alias")),
                ("name", django_delayq.models.fields.NameField(max_length=200, verbose_name="name")),
                ("sequence_id", django_delayq.models.fields.NameField(max_length=200, verbose_name="id")),
                ("plan", models.TextField(verbose_name="plan")),
                ("data", models.TextField(verbose_name="data")),
                ("step", models.PositiveSmallIntegerField(verbose_name="step")),
                ("message_id", django_delayq.models.fields.NameField(max_length=200, verbose_name="id of its message")),
                ("started_at", django_delayq.models.fields.InstantField(verbose_name="started at")),
                ("look_at", django_delayq.models.fields.InstantField(verbose_name="looked at again")),
                ("stopped_at", django_delayq.models.fields.InstantField(null=True, verbose_name="stopped at")),
                ("restarts", models.BooleanField(default=False, verbose_name="restarts")),
            ],
            options={
                "verbose_name": "sequence",
                "verbose_name_plural": "sequences",
                "db_table": "delayq_sequence",
                "indexes": [
                    models.Index(fields=["message_id", "alias"], name="delayq_sequence_of"),
                    models.Index(fields=["alias", "look_at"], name="delayq_sequence_look"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("sequence_id", "name", "alias"), name="delayq_sequence_names")
                ],
            },
        ),
        migrations.CreateModel(
            name="SequenceTag",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("alias", django_delayq.models.fields.NameField(max_length=200, verbose_name="alias")),
                ("tag", django_delayq.models.fields.NameField(max_length=200, verbose_name="tag")),
                ("sequence_pk", models.BigIntegerField(verbose_name="sequence's row")),
            ],
            options={
                "verbose_name": "tag of a sequence",
                "verbose_name_plural": "tags of sequences",
                "db_table": "delayq_sequence_tag",
                "indexes": [models.Index(fields=["sequence_pk"], name="delayq_sequence_tag_of")],
                "constraints": [
                    models.UniqueConstraint(fields=("tag", "alias", "sequence_pk"), name="delayq_sequence_tags")
                ],
            },
        ),
    ]
