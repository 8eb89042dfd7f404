"""The page of one message: facts, attempts, payload, what operators did to it, and what may be done now."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.access import address, alias_of, database_of, message_address, render_about, stored_aliases
from django_delayq.admin.bulk.changes import TABLES
from django_delayq.admin.formatting import between, exact, in_utc, now_utc, visible, visibly
from django_delayq.admin.lists.bounded import LIMIT_S, TooSlow, is_primary_key, time_limit
from django_delayq.admin.lists.columns import is_abandoned, is_running, most_attempts, state_in_words
from django_delayq.admin.log import entries_of
from django_delayq.admin.message.errors import hide_errors, may_view_errors
from django_delayq.admin.message.payload import Payload, may_view, payload_in, payload_of
from django_delayq.admin.visibility import visible_rows
from django_delayq.conf import get_alias
from django_delayq.core.batches import batch_of
from django_delayq.core.errors import DelayqError
from django_delayq.core.history import Ended, read
from django_delayq.core.lanes import split_lane
from django_delayq.core.message import progress_words
from django_delayq.core.occurrences import schedule_of
from django_delayq.core.steps import step_of
from django_delayq.models import AnyMessage, ErrorMessage, FinishMessage, MessageRow, ReadyMessage, Schedule
from django_delayq.support.timestamps import from_ms, to_epoch_ms
from django_delayq.support.units import to_text
from django_delayq.translation import translated

_OUTCOMES = {
    Ended.FAILED: gettext_lazy("failed"),
    Ended.SNOOZED: gettext_lazy("snoozed"),
    Ended.CRASHED: gettext_lazy("its process died"),
    Ended.INTERRUPTED: gettext_lazy("interrupted by the stop of its worker"),
    Ended.LOST: gettext_lazy("its lease ran out"),
    Ended.CANCELLED: gettext_lazy("cancelled"),
    Ended.BURIED: gettext_lazy("failed for good, and was rescued"),
}


class Fact(NamedTuple):
    """One line of the page: a name, its value, and for a point in time the same in UTC."""

    name: str
    value: Any
    utc: str = ""


def facts(row: MessageRow) -> Iterator[Fact]:
    """Yield the lines of the page, from the state to the trace id; the payload is not among them."""
    yield Fact(_("state"), state_of(row))
    yield Fact(_("key"), row.key)
    queue, priority = split_lane(row.queue)
    yield Fact(_("queue"), queue)
    yield Fact(_("priority"), priority)
    yield Fact(_("alias"), row.alias)
    yield _when(_("sent"), row.sent_at)
    yield _when(_("due"), row.due_at)
    if not isinstance(row, FinishMessage) and row.scheduled_at < row.due_at:
        yield _when(_("first due"), row.scheduled_at)
    yield from _lateness(row)
    if row.expires_at is not None:
        yield _when(_("expires"), row.expires_at)
    if isinstance(row, ReadyMessage) and is_running(row):
        yield from _run(row)
    if isinstance(row, FinishMessage | ErrorMessage):
        yield _when(_("ended"), row.ended_at)
    yield Fact(_("failed attempts"), row.failures)
    yield Fact(_("most attempts"), most_attempts(row) or _("as its handler says, which is not known here"))
    yield Fact(_("deaths of its worker"), row.crashes)
    if row.merged_sends:
        yield Fact(_("merged sends"), row.merged_sends)
    if row.again_at is not None:
        yield _when(_("runs again after this run"), row.again_at)
    yield from _options(row)


def _options(row: MessageRow) -> Iterator[Fact]:
    """Yield a line for each choice of the send that the message has."""
    if row.timeout_ms is not None:
        yield Fact(_("time-out"), to_text(row.timeout_ms))
    if row.at_most_once:
        yield Fact(_("at most once"), _("yes: it never starts a second time"))
    if row.share is not None:
        yield Fact(_("share"), row.share)
    if row.version is not None:
        yield Fact(_("version of the data"), row.version)
    if row.trace_id:
        yield Fact(_("trace id"), row.trace_id)


def state_of(row: MessageRow) -> str:
    """Return the state of a message in a few words."""
    if isinstance(row, ReadyMessage):
        return state_in_words(row)
    return str(row.get_outcome_display()) if isinstance(row, FinishMessage) else _("failed for good")


def what_next(row: MessageRow) -> str:
    """Return in words what happens next to a message if no operator acts."""
    return explained(row)[0]


def explained(row: MessageRow) -> tuple[str, Sequence[str]]:
    """Return in words what happens next to a message if no operator acts, and the rule of its due time."""
    if isinstance(row, FinishMessage):
        from django_delayq.monitor.sequences import stop_in_words  # late, as in dashboard/urls.py

        is_over = _("Nothing: it is over.")
        stopped = stop_in_words(row.message_id, row.error)
        return (f"{is_over} {stopped}" if stopped else _with_batch(row, is_over)), _rule(row)
    stands_still = _("Nothing until it is rescued, purged or pruned.")
    if isinstance(row, ErrorMessage) and step_of(row.message_id) is None:
        return _with_batch(row, stands_still), _rule(row)
    from django_delayq.monitor import explain  # late, as in dashboard/urls.py

    try:
        with time_limit(get_alias(row.alias).database):
            explanation = explain(row.message_id, row.alias)
    except TooSlow:
        return _("It can't be said within %(limit)g s.") % {"limit": LIMIT_S}, ()
    except DelayqError as error:
        return _("It can't be said now: %(error)s") % {"error": translated(error)}, ()
    if explanation is None:
        return _("It has just moved on."), ()
    if isinstance(row, ErrorMessage) and explanation.facts is not None and explanation.facts.pk != str(row.pk):
        return stands_still, _rule(row)  # what is explained is a newer message with its id
    words = (
        explanation.happens_next,
        explanation.schedule_words,
        explanation.sequence_words,
        explanation.batch_words,
    )
    return " ".join(filter(None, words)), explanation.rule


def _with_batch(row: MessageRow, words: str) -> str:
    """Add to the words on a message that has ended which batch it is a member of, and how far that is."""
    from django_delayq.monitor import batches  # late, as above

    if batch_of(row.message_id) is None:
        return words
    try:
        with time_limit(get_alias(row.alias).database):
            _batch, batch_words = batches.of_member(database_of(row.alias), row.message_id)
    except TooSlow:
        return words
    return " ".join(filter(None, (words, batch_words)))


def _run(row: ReadyMessage) -> Iterator[Fact]:
    if row.lease_until:
        yield Fact(_("held by"), row.worker)
        yield _when(_("held until, if not renewed"), row.lease_until)
    if row.progress:
        yield Fact(_("progress"), progress_words(row.progress))
    if row.cancel_at is not None:
        yield _when(_("asked to cancel"), row.cancel_at)
        yield Fact(_("asked to cancel by"), row.cancel_by or "-")


def _lateness(row: MessageRow) -> Iterator[Fact]:
    now = now_utc()
    if row.started_at is not None and (not isinstance(row, ReadyMessage) or is_running(row)):
        yield Fact(_("started late by"), between(row.due_at, max(row.due_at, row.started_at)))
    elif isinstance(row, ReadyMessage) and row.due_at <= now:
        yield Fact(_("late by"), between(row.due_at, now))
    elif isinstance(row, ReadyMessage):
        yield Fact(_("due in"), between(now, row.due_at))


def _when(name: str, moment: datetime) -> Fact:
    return Fact(name, exact(moment), in_utc(moment))


@dataclass(frozen=True, slots=True)
class Step:
    """One attempt as the page shows it, or an end without an attempt. Such an end has no number.

    `waited` is the time from the end of the previous attempt, or from the send. The traceback of the attempt that
    buried a message is not here: the page shows it above the attempts.
    """

    number: Any
    started: Any
    waited: str
    took: str
    worker: str
    outcome: Any
    error: str = ""
    traceback: str = ""


def timeline(row: MessageRow) -> list[Step]:
    """Return the attempts of a message, oldest first, including one that runs.

    If the message has ended, the last step is its end, even if no attempt led to it. If there were very many attempts,
    some in the middle are not kept.
    """
    steps, before = [], row.sent_at
    for past in read(row.history):
        started, ended = None if past.started is None else from_ms(past.started), from_ms(past.ended)
        times = _times(before, started, ended)
        said = map(visible, (past.error, past.traceback))
        steps.append(Step(past.attempt, *times, visible(past.worker), _OUTCOMES[past.outcome], *said))
        before = ended
    if isinstance(row, FinishMessage | ErrorMessage):
        times = _times(before, row.started_at, row.ended_at)
        error = row.error if isinstance(row, ErrorMessage) or _was_stopped(row) else ""
        steps.append(Step(_last_number(row), *times, row.worker, state_of(row), error))
    elif isinstance(row, ReadyMessage) and is_running(row):
        outcome = _OUTCOMES[Ended.LOST] if is_abandoned(row) else _("runs")
        steps.append(Step(row.failures + 1, *_times(before, row.started_at, None), row.worker, outcome))
    return steps


def _was_stopped(row: MessageRow) -> bool:
    """Return whether a message was cancelled while it ran."""
    return isinstance(row, FinishMessage) and row.outcome == FinishMessage.Outcome.CANCELLED and bool(row.started_at)


def _last_number(row: FinishMessage | ErrorMessage) -> int | str:
    """Return the number of the attempt that ended a message; "-" if none did: it was cancelled, or refused a start."""
    if isinstance(row, FinishMessage):
        is_cancelled = row.outcome == FinishMessage.Outcome.CANCELLED
        return "-" if is_cancelled and not _was_stopped(row) else row.failures + 1
    return max(row.failures, 1) if row.started_at or row.detail else "-"


def _times(before: datetime, started: datetime | None, ended: datetime | None) -> tuple[Any, str, str]:
    """Return when an attempt started, how long it waited, and how long it took; "-" for what is not known."""
    if started is None:
        return "-", "-", "-"
    return exact(started), between(before, started), "-" if ended is None else between(started, ended)


def message_page(admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    """Render the page of a message, or redirect to where the message has moved."""
    if not admin.has_view_permission(request):
        raise PermissionDenied
    alias, _colon, pk = unquote(object_id).rpartition(":")  # as admin/log.py writes it
    if alias in stored_aliases() and is_primary_key(pk):
        return HttpResponseRedirect(address(request, f"delayq_{admin.opts.model_name}_change", alias, pk))
    row = admin.get_object(request, object_id)
    if row is None:
        return _elsewhere(admin, request, object_id)
    if not admin.has_view_permission(request, row):
        raise PermissionDenied
    sees_errors = may_view_errors(request)
    hide_errors(request, [row])
    payload = payload_of(row, request)
    can_change = payload.text is not None and not payload.masked
    shown = visibly(row)
    next_step, rule = explained(row)
    return render_about(
        admin,
        request,
        "message",
        title=str(shown.message_id),
        original=shown,
        has_view_permission=True,
        change=True,
        facts=[*facts(shown), *_schedule(admin, request, row)],
        sees_errors=sees_errors,
        what_next=next_step,
        attempts=timeline(shown),
        payload=payload,
        returned=_returned(row, request),
        rule="\n".join(visible(translated(each)) for each in rule),
        tags=[(visible(tag), list(_of_same_tag(admin, request, row, tag))) for tag in _tags(row)],
        entries=list(entries_of(row, with_payloads=may_view(request), with_errors=sees_errors)),
        buttons=admin.buttons(request),
        edit_address=admin.edit_address(request, row) if can_change else "",
        edit_title=admin.edit.title if admin.edit else "",
        list_address=_list_address(request, admin.model, row.alias),
    )


def _schedule(admin: Any, request: HttpRequest, row: MessageRow) -> Iterator[Fact]:
    """Yield the schedule of which a message is an occurrence, if there is one that the user may see."""
    name = schedule_of(row.message_id)
    if name is None or not admin.admin_site.is_registered(Schedule):
        return
    list_of_schedules = admin.admin_site.get_model_admin(Schedule)
    if list_of_schedules.has_view_permission(request):
        schedule = list_of_schedules.get_queryset(request).filter(name=name).only("alias", "name").first()
        if schedule is not None:
            found = address(request, "delayq_schedule_change", schedule.alias, schedule.pk)
            yield Fact(_("of schedule"), format_html('<a href="{}">{}</a>', found, visible(schedule.name)))


def _list_address(request: HttpRequest, model: type[MessageRow], alias: str, **query: str) -> str:
    return address(request, f"delayq_{model._meta.model_name}_changelist", alias, **query)


def _elsewhere(admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    alias = alias_of(request)
    for model in filter(admin.admin_site.is_registered, TABLES):
        may_view_it = admin.admin_site._registry[model].has_view_permission(request)
        if is_primary_key(object_id) and model is not admin.model and may_view_it:
            found = visible_rows(request.user, model, alias).filter(pk=object_id).first()
            if found is not None:
                return HttpResponseRedirect(message_address(request, found))
    messages.warning(request, _("There is no message %(pk)s any more.") % {"pk": visible(object_id)})
    return HttpResponseRedirect(_list_address(request, admin.model, alias))


def _returned(row: MessageRow, request: HttpRequest) -> Payload | None:
    """Return what the task of a finished message returned, as this user may see it; None if nothing is kept."""
    if not isinstance(row, FinishMessage) or row.outcome != FinishMessage.Outcome.FINISHED:
        return None
    from django_delayq.store import returned  # late, as in dashboard/urls.py

    value = returned.read(database_of(row.alias), row.message_id)
    return None if value is None else payload_in(value, row, request)


def _rule(row: MessageRow) -> Sequence[str]:
    """Return the rule of the due time of a message that is over in words, a line for each step."""
    from django_delayq.core.rules import in_words, is_due_by  # late: most messages have none
    from django_delayq.store import rules  # late, as in dashboard/urls.py

    kept = rules.read(database_of(row.alias), [row.pk]).get(row.pk)
    if kept is None:
        return ()
    text, due_ms = kept
    return in_words(
        text, row.message_id, is_due_by_it=is_due_by(due_ms, to_epoch_ms(row.due_at), to_epoch_ms(row.sent_at))
    )


def _tags(row: MessageRow) -> tuple[str, ...]:
    if row.tag is None:
        return ()
    from django_delayq.store import tags  # late, as in dashboard/urls.py

    tags.add_to(database_of(row.alias), [(row.pk, row)])
    return row.tags


def _of_same_tag(admin: Any, request: HttpRequest, row: MessageRow, tag: str) -> Iterator[tuple[Any, str]]:
    """Yield the name and address of each list of this site, and of the page of all, searched for a tag."""
    if admin.admin_site.is_registered(AnyMessage):
        yield AnyMessage._meta.verbose_name_plural, _list_address(request, AnyMessage, row.alias, q=tag)
    for model in filter(admin.admin_site.is_registered, TABLES):
        yield model._meta.verbose_name_plural, _list_address(request, model, row.alias, q=tag)
