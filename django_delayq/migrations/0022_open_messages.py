"""Name the list after what it holds: messages that wait or run, ready or not. No table changes."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("delayq", "0021_tags")]

    operations = [
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
                ],
                "verbose_name": "open message",
                "verbose_name_plural": "open messages",
            },
        ),
    ]
