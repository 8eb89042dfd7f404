"""Ask for a list of departures, look how far it is, and give it up."""

from django.db import transaction

from django_delayq import MessageInfo, State, cancel_delay_messages, get_delay_message
from example_project.shop.delayed import export_departures
from example_project.shop.models import Export

UNDER_WAY = (State.PENDING, State.READY, State.RUNNING)


def ask_for_export(origin: str = "") -> Export:
    """Ask for the departures of an airport, or of all, and have them written now."""
    with transaction.atomic():
        export = Export.objects.create(origin=origin)
        export_departures.send(export.pk, id=export_id(export))
    return export


def cancel_export(export: Export, by: str) -> int:
    """Give up an export that waits or runs. Return whether it did, as 1 or 0."""
    return cancel_delay_messages(export_id(export), running=True, by=by)


def message_of(export: Export) -> MessageInfo | None:
    """Return the message that writes an export while it waits or runs, with its progress; else None."""
    message = get_delay_message(export_id(export))
    return message if message and message.state in UNDER_WAY else None


def export_id(export: Export) -> str:
    return f"export:{export.pk}"
