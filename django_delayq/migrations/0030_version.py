"""Keep the version of a message's data (`Handler.upgrade`). The columns may be empty, so adding them is quick."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delayq", "0024_rules")]

    operations = [
        migrations.AddField(name, "version", models.IntegerField(null=True, verbose_name="version of the data"))
        for name in ("readymessage", "finishmessage", "errormessage")
    ]
