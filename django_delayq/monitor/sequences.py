"""Say which sequence a message is a step of, what follows, and when a step comes that has no message yet."""

from collections.abc import Iterator
from datetime import datetime

from django.utils.translation import gettext as _

from django_delayq.api.sequences import following
from django_delayq.core.steps import step_of
from django_delayq.models import SequenceRow
from django_delayq.store import sequences


def in_words(row: SequenceRow, ends_at: datetime | None) -> str:
    """Return in the active language which step of which sequence a message is, and what follows if it ends then."""
    if row.restarts and row.stopped_at is None:
        words = _("Another message has the id of this step, which is put when that has ended.")
        return f"{_which(row, row.step + 1)} {words}"
    return f"{_which(row, row.step)} {_what_follows(row, ends_at)}"


def when_it_comes(row: SequenceRow, number: int, ends_at: datetime | None) -> str:
    """Return in the active language when a step of a sequence comes that has no message; "" if it had one.

    The message that the sequence has come to ends at `ends_at`; None means that it has failed.
    """
    begins_anew = row.restarts and row.stopped_at is not None
    if not (row.step < number or begins_anew) or number > len(sequences.plan_of(row)):
        return ""
    return f"{_which(row, number)} {' '.join(_how_far(row, number, ends_at))}"


def stop_in_words(message_id: str, error: str) -> str:
    """Return in the active language that a message with this error was cancelled by a stop of its sequence.

    Return "" if it was not.
    """
    step = step_of(message_id)
    if step is None or not error.startswith(sequences.STOPPED):
        return ""
    at, by_tag, tag = error.removeprefix(sequences.STOPPED).removesuffix(" UTC").partition(sequences.BY_TAG)
    which = _("It was step %(number)d of the sequence %(name)s, started as %(id)s.") % {
        "number": step.number,
        "name": repr(step.name),
        "id": repr(step.id),
    }
    stop = _("That was stopped at %(at)s UTC, and this message was cancelled.")
    if by_tag:
        stop = _("That was stopped at %(at)s UTC, by the tag %(tag)s, and this message was cancelled.")
    return f"{which} {stop % {'at': at, 'tag': tag}}"


def _which(row: SequenceRow, number: int) -> str:
    return _("It is step %(number)d of %(most)d of the sequence %(name)s, started as %(id)s.") % {
        "number": number,
        "most": len(sequences.plan_of(row)),
        "name": repr(row.name),
        "id": repr(row.sequence_id),
    }


def _how_far(row: SequenceRow, number: int, ends_at: datetime | None) -> Iterator[str]:
    message = {"message": repr(row.message_id)}
    due_at = next((step.due_at for step in following(row, ends_at) if step.number == number), None)
    if row.restarts and row.stopped_at is not None:
        yield _("It is still to come: the sequence was stopped, and begins anew when %(message)s has ended.") % message
    elif row.stopped_at is not None:
        yield _("It does not come: the sequence was stopped while %(message)s ran.") % message
        return
    else:
        yield _("It is still to come: the sequence has come to %(message)s.") % message
    if ends_at is None:
        yield _("That has failed: what follows comes once it was rescued and has finished.")
    elif due_at is None:
        yield _("When it is due can't be said, as a calendar fails.")
    else:
        yield _("It is due at %(at)s UTC at the earliest.") % {"at": f"{due_at:%Y-%m-%d %H:%M:%S}"}


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
