"""Keep the version of a message's data (`Handler.upgrade`). The columns may be empty, so adding them is quick.

Also add the permission to send messages again.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delayq", "0025_debounce")]

    operations = [
        migrations.AddField(name, "version", models.IntegerField(null=True, verbose_name="version of the data"))
        for name in ("readymessage", "finishmessage", "errormessage")
    ] + [
        migrations.AlterModelOptions(
            name="readymessage",
            options={
                "permissions": [
                    ("view_payload", "Can see the payloads of messages"),
                    ("view_error", "Can see the errors of messages"),
                    ("rescue_message", "Can rescue failed messages: run them again"),
                    ("cancel_message", "Can cancel waiting messages"),
                    ("reschedule_message", "Can change when messages are due"),
                    ("edit_payload", "Can change the payloads of messages"),
                    ("pause_queue", "Can pause and resume queues and keys"),
                    ("send_again", "Can send messages again that have ended"),
                ],
                "verbose_name": "open message",
                "verbose_name_plural": "open messages",
            },
        ),
    ]
