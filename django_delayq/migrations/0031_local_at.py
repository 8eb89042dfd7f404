"""Keep the local time of each schedule's last occurrence, which an instant does not tell once its zone has changed.

The column may be empty, so adding it is quick. It is filled as occurrences are put.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delayq", "0030_shares")]

    operations = [
        migrations.AddField(
            "schedule", "local_at", models.CharField(max_length=40, null=True, verbose_name="local time")
        ),
    ]
