"""The facts on the page of a message: where it is, when it is due and how late it is, and what happens next."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from django_delayq.admin.lists.columns import between, exact, is_running, most_attempts, state
from django_delayq.admin.lists.conditions import now_utc
from django_delayq.admin.lists.page_cost import LIMIT_S, TooSlow, time_limit
from django_delayq.conf import get_alias
from django_delayq.core.errors import DelayqError
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage
from django_delayq.monitor import explain, translated
from django_delayq.support.units import to_text


class Fact(NamedTuple):
    """One line: a name, its value, and for an instant the same in UTC."""

    name: str
    value: Any
    utc: str = ""


def facts(row: MessageRow) -> Iterator[Fact]:
    """Yield the lines of the page, from the state to the trace id; the payload is not among them."""
    yield Fact(_("state"), state_of(row))
    yield Fact(_("key"), row.key)
    yield Fact(_("queue"), row.queue)
    yield Fact(_("alias"), row.alias)
    yield _when(_("sent"), row.sent_at)
    yield _when(_("due"), row.due_at)
    yield from _lateness(row)
    if row.expires_at is not None:
        yield _when(_("expires"), row.expires_at)
    if isinstance(row, ReadyMessage) and is_running(row) and row.lease_until:
        yield Fact(_("held by"), row.worker)
        yield _when(_("held until, if not renewed"), row.lease_until)
    if isinstance(row, FinishMessage | ErrorMessage):
        yield _when(_("ended"), row.ended_at)
    yield Fact(_("failed attempts"), row.failures)
    yield Fact(_("most attempts"), most_attempts(row) or _("as its handler says, which is not known here"))
    yield Fact(_("deaths of its worker"), row.crashes)
    if row.timeout_ms is not None:
        yield Fact(_("time-out"), to_text(row.timeout_ms))
    if row.at_most_once:
        yield Fact(_("at most once"), _("yes: it never starts a second time"))
    if row.trace_id:
        yield Fact(_("trace id"), row.trace_id)


def state_of(row: MessageRow) -> str:
    """Return the state of a message in a few words."""
    if isinstance(row, ReadyMessage):
        return state(row)
    return str(row.get_outcome_display()) if isinstance(row, FinishMessage) else _("failed for good")


def what_next(row: MessageRow) -> str:
    """Return what happens to it without an operator."""
    if isinstance(row, FinishMessage):
        return _("Nothing: it is over.")
    if isinstance(row, ErrorMessage):
        return _("Nothing until it is run again or deleted.")
    try:
        with time_limit(get_alias(row.alias).database):
            explanation = explain(row.message_id, row.alias)
    except TooSlow:
        return _("It can't be said within %(limit)g s.") % {"limit": LIMIT_S}
    except DelayqError as error:
        return _("It can't be said now: %(error)s") % {"error": translated(error)}
    return _("It has just moved on.") if explanation is None else explanation.happens_next


def _lateness(row: MessageRow) -> Iterator[Fact]:
    now = now_utc()
    if row.started_at is not None and (not isinstance(row, ReadyMessage) or is_running(row)):
        yield Fact(_("started late by"), between(row.due_at, max(row.due_at, row.started_at)))
    elif isinstance(row, ReadyMessage) and row.due_at <= now:
        yield Fact(_("late by"), between(row.due_at, now))
    elif isinstance(row, ReadyMessage):
        yield Fact(_("due in"), between(now, row.due_at))


def _when(name: str, moment: datetime) -> Fact:
    return Fact(name, exact(moment), moment.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC"))
