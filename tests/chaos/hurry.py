"""A process that does what an operator does when the reason is mended: what was refused to finish runs again now."""

import django

from django_delayq import reschedule_delay_messages


def main() -> None:
    """Do so: such a message would wait for up to an hour."""
    from django_delayq.models import ReadyMessage

    refused = ReadyMessage.objects.filter(error__startswith="its finish is refused", token=None)
    if ids := list(refused.values_list("message_id", flat=True)):
        reschedule_delay_messages(*ids, delay=0)


if __name__ == "__main__":
    django.setup()
    main()
