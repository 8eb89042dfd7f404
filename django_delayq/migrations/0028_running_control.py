"""Say of a message that runs who asked to cancel it and when, and how far its handler is."""

from django.db import migrations

import django_delayq.models.fields


class Migration(migrations.Migration):
    dependencies = [("delayq", "0027_follow_ups")]

    operations = [
        migrations.AddField(
            model_name="readymessage",
            name="cancel_at",
            field=django_delayq.models.fields.InstantField(null=True, verbose_name="asked to cancel at"),
        ),
        migrations.AddField(
            model_name="readymessage",
            name="cancel_by",
            field=django_delayq.models.fields.NameField(max_length=200, null=True, verbose_name="asked to cancel by"),
        ),
        migrations.AddField(
            model_name="readymessage",
            name="progress",
            field=django_delayq.models.fields.NameField(max_length=220, null=True, verbose_name="progress"),
        ),
    ]
