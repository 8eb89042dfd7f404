"""Keep the UTC offset of each schedule's last occurrence, by which `delayq resolve` knows its local time.

The column may be empty, so adding it is quick. It is filled as occurrences are put.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delayq", "0030_shares")]

    operations = [
        migrations.AddField("schedule", "utc_offset", models.IntegerField(null=True, verbose_name="UTC offset")),
    ]
