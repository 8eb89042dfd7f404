"""Keep the share of a message, by which messages take turns (django_delayq/core/shares.py), and index it.

The columns may be empty, so adding them is quick. PostgreSQL and SQLite index only rows that have a share, so their new
index is empty; PostgreSQL reads the table once for it, which blocks sends meanwhile, a second for a few million rows.
MySQL and MariaDB index every row.
"""

from django.db import migrations, models

import django_delayq.models.fields
from django_delayq.models.indexes import ShareIndex


class Migration(migrations.Migration):
    dependencies = [("delayq", "0029_undo")]

    operations = [
        migrations.AddField(
            name,
            "share",
            django_delayq.models.fields.NameField(max_length=150, null=True, verbose_name="share"),
        )
        for name in ("readymessage", "finishmessage", "errormessage")
    ] + [
        migrations.AddIndex(
            "readymessage",
            ShareIndex(
                fields=["alias", "queue", "key", "share", "due_at"],
                condition=models.Q(share__isnull=False),
                name="delayq_ready_share",
            ),
        ),
    ]
