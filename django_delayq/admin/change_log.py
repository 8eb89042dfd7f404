"""Say for the log what a move has changed of each message, in the same words whatever the language."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from django_delayq.admin.bulk.moves import Change
from django_delayq.conf import get_alias
from django_delayq.models import MessageRow, ReadyMessage

LONGEST = 200
"""The most characters of an error."""


def changed(alias: str, rows: Sequence[MessageRow], change: Change) -> Mapping[int, str]:
    """Return a text by primary key, for rows as they were before the move.

    For what failed it is the error. For the others it is when they were due, and when they are due now if that changed.
    """
    if change.move in ("rescue", "purge_failed"):
        return {row.pk: " ".join(row.error.split())[:LONGEST] for row in rows}
    was = {row.pk: f"due_at {_utc(row.due_at)}" for row in rows}
    if change.move not in ("reschedule", "shift"):
        return was
    now = ReadyMessage.objects.using(get_alias(alias).database).only("due_at").filter(pk__in=was)
    return was | {row.pk: f"{was[row.pk]} → {_utc(row.due_at)}" for row in now}


def _utc(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")
