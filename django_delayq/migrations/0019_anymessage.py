"""Give the admin's page of all messages its place. No table changes."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("delayq", "0018_lanes")]

    operations = [
        migrations.CreateModel(
            name="AnyMessage",
            fields=[],
            options={
                "verbose_name": "message",
                "verbose_name_plural": "messages",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("delayq.readymessage",),
        ),
    ]
