"""Say which sequence a message is a step of, and what follows."""

from datetime import datetime

from django.utils.translation import gettext as _

from django_delayq.api.sequences import following
from django_delayq.models import SequenceRow
from django_delayq.store import sequences


def in_words(row: SequenceRow, ends_at: datetime | None) -> str:
    """Return in the active language which step of which sequence a message is, and what follows if it ends then."""
    told = _("It is step %(number)d of %(most)d of the sequence %(name)s, started as %(id)s.") % {
        "number": row.step,
        "most": len(sequences.plan_of(row)),
        "name": repr(row.name),
        "id": repr(row.sequence_id),
    }
    return f"{told} {_what_follows(row, ends_at)}"


def _what_follows(row: SequenceRow, ends_at: datetime | None) -> str:
    if row.restarts:
        return _("The sequence was stopped and started again: it begins anew when this message has ended.")
    if row.stopped_at is not None:
        return _("The sequence was stopped: nothing follows, and this message does not start again.")
    to_come = following(row, ends_at)
    if not to_come:
        return _("It is the last.")
    key, due_at = repr(to_come[0].key), to_come[0].due_at
    if ends_at is None:
        return _("Once it was rescued and has finished, %(key)s follows.") % {"key": key}
    if due_at is None:
        return _("Then %(key)s follows; when can't be said, as its calendar fails.") % {"key": key}
    return _("Then %(key)s follows, at %(at)s UTC at the earliest.") % {"key": key, "at": f"{due_at:%Y-%m-%d %H:%M:%S}"}
