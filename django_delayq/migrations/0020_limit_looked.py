"""Note when a limit was last looked at, so that a permit that nobody could renew meanwhile does not lapse at once."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delayq", "0019_anymessage")]

    operations = [
        migrations.AddField(
            model_name="limitrow",
            name="looked_ms",
            field=models.BigIntegerField(verbose_name="last look", default=0, db_default=0),
        )
    ]
