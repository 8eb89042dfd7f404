"""Say that figures begin at a number of epoch ms, as their SQL has it. The column stays the same."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delayq", "0016_versions_of_limits")]

    operations = [
        migrations.AlterField(
            model_name="figurerow",
            name="at",
            field=models.BigIntegerField(verbose_name="at"),
        ),
    ]
