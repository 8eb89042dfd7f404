import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Export",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("origin", models.CharField(blank=True, max_length=3)),
                ("lines", models.TextField(blank=True)),
                ("written_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Catalogue",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("batch_id", models.CharField(max_length=200)),
                ("rows", models.PositiveIntegerField()),
                ("added", models.PositiveIntegerField(null=True)),
                ("failed", models.PositiveIntegerField(null=True)),
                (
                    "store",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="catalogues", to="shop.store"
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="product",
            name="version",
            field=models.PositiveIntegerField(default=1),
        ),
        migrations.CreateModel(
            name="SearchDocument",
            fields=[
                (
                    "product",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="document",
                        serialize=False,
                        to="shop.product",
                    ),
                ),
                ("text", models.CharField(max_length=100)),
                ("version", models.PositiveIntegerField()),
            ],
        ),
        # The reminders of before knew no message; the example begins anew.
        migrations.DeleteModel(name="Reminder"),
        migrations.CreateModel(
            name="Reminder",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("message_id", models.CharField(max_length=200, unique=True)),
                ("sent_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "order",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="reminders", to="shop.order"
                    ),
                ),
            ],
        ),
        migrations.AlterField(
            model_name="run",
            name="outcome",
            field=models.CharField(
                choices=[
                    ("running", "Running"),
                    ("finished", "Finished"),
                    ("failed", "Failed"),
                    ("cancelled", "Cancelled"),
                ],
                default="running",
                max_length=10,
            ),
        ),
    ]
