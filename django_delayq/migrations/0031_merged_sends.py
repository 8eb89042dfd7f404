"""Keep how many sends were merged into a message that has ended, and when the first of them was.

The columns may be empty, so adding them is quick.
"""

from django.db import migrations, models

import django_delayq.models.fields


class Migration(migrations.Migration):
    dependencies = [("delayq", "0030_shares")]

    operations = [
        migrations.AddField(model, name, field)
        for model in ("finishmessage", "errormessage")
        for name, field in (
            ("first_at", django_delayq.models.fields.InstantField(null=True, verbose_name="first sent at")),
            ("merged", models.IntegerField(null=True, verbose_name="merged sends")),
        )
    ]
