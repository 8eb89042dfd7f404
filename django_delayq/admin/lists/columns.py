"""The columns of the lists of messages, in words."""

from typing import Any

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.formatting import between, instant, now_utc, queue_words
from django_delayq.api.handlers import get_handler
from django_delayq.core.message import progress_words
from django_delayq.core.transitions import max_attempts
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage, ReportRow

LONGEST = 120
"""The most characters of an error in a list."""


def most_attempts(row: MessageRow) -> int | None:
    """Return how many attempts a message may have, or None if that is not known here."""
    return max_attempts(row, get_handler(row.alias, row.key))


def is_running(row: ReadyMessage) -> bool:
    """Return whether a worker holds the message, or held it when its lease ran out."""
    return row.token is not None


def is_abandoned(row: ReadyMessage) -> bool:
    """Return whether the message's lease has run out. No move takes such a message until a worker has reclaimed it."""
    return row.token is not None and row.lease_until is not None and row.lease_until <= now_utc()


def state_in_words(row: ReadyMessage) -> str:
    """Return the message's state, with the worker's name if one holds it or has abandoned it."""
    if is_abandoned(row):
        return _("abandoned by %(worker)s") % {"worker": row.worker}
    if is_running(row):
        running = _("running on %(worker)s") % {"worker": row.worker}
        return f"{running} ({progress_words(row.progress)})" if row.progress else running
    return _("pending") if row.due_at > now_utc() else _("ready")


def _counted(row: MessageRow, number: int) -> str:
    most = most_attempts(row)
    return str(number) if most is None else _("%(number)s of %(most)s") % {"number": number, "most": most}


@admin.display(description=gettext_lazy("kind of failure"), empty_value="-")
def fingerprint(row: ErrorMessage) -> Any:
    """Return the type of the exception, and the place in the site's code where it was raised.

    This is not a method of `Columns`, because the lists would show the field of this name instead.
    """
    return row.fingerprint or None


@admin.display(description=gettext_lazy("queue"), ordering="queue")
def queue(row: MessageRow | ReportRow) -> str:
    """Return the queue, and the priority if it is another than 0. It is no method of `Columns`, like `fingerprint`."""
    return queue_words(row.queue)


class Columns:
    """The columns that the lists show besides the plain fields of a message."""

    @admin.display(description=gettext_lazy("state"))
    def state(self, row: ReadyMessage) -> str:
        """Return the message's state."""
        return state_in_words(row)

    @admin.display(description=gettext_lazy("attempt"))
    def attempt(self, row: ReadyMessage) -> str:
        """Return the number of the attempt that runs or comes next."""
        return _counted(row, row.failures + 1)

    @admin.display(description=gettext_lazy("failed attempts"))
    def failed_attempts(self, row: MessageRow) -> str:
        """Return how many attempts failed."""
        return _counted(row, row.failures)

    @admin.display(description=gettext_lazy("next"))
    def next_step(self, row: ReadyMessage) -> str:
        """Return what will happen to the message next if no operator acts, and when."""
        now = now_utc()
        if is_abandoned(row):
            if row.cancel_at is not None:
                return _("cancelled soon: its lease ran out")
            if row.at_most_once:
                return _("fails soon: its lease ran out, and it must not start twice")
            return _("ready again soon: its lease ran out")
        if is_running(row) and row.cancel_at is not None:
            return _("cancelled when its handler stops")
        if is_running(row) and row.lease_until:
            return _("ends as its handler does; held for %(time)s more") % {"time": between(now, row.lease_until)}
        if row.expires_at is not None and row.expires_at <= now:
            return _("expired: fails when it is claimed")
        if row.due_at <= now:
            return _("waits for a worker, late by %(time)s") % {"time": between(row.due_at, now)}
        again = _("tried again in %(time)s") if row.failures else _("starts in %(time)s")
        return again % {"time": between(now, row.due_at)}

    @admin.display(description=gettext_lazy("due"))
    def due(self, row: MessageRow) -> str | SafeString:
        """Return when the message is or was due."""
        return instant(row.due_at)

    @admin.display(description=gettext_lazy("ended"))
    def ended(self, row: FinishMessage | ErrorMessage) -> str | SafeString:
        """Return when the message ended."""
        return instant(row.ended_at)

    @admin.display(description=gettext_lazy("failed at"))
    def buried(self, row: ErrorMessage) -> str | SafeString:
        """Return when the message failed for good."""
        return instant(row.ended_at)

    @admin.display(description=gettext_lazy("last error"))
    def last_error(self, row: MessageRow) -> str | SafeString:
        """Return the last error, cut if it is long, in an element that keeps some width even in a narrow list."""
        cut = row.error if len(row.error) <= LONGEST else f"{row.error[: LONGEST - 1]}…"
        return cut and format_html('<span class="delayq-last-error">{}</span>', cut)

    @admin.display(description=gettext_lazy("late by"))
    def lateness(self, row: MessageRow) -> str:
        """Return how long after its due time its last attempt started."""
        return "-" if row.started_at is None else between(row.due_at, max(row.due_at, row.started_at))

    @admin.display(description=gettext_lazy("took"))
    def duration(self, row: FinishMessage) -> str:
        """Return how long its last attempt took."""
        return "-" if row.started_at is None else between(row.started_at, row.ended_at)
