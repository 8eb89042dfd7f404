"""Move more rows than a request should wait for, with messages of our own: each moves a page and sends the next one.

So a job survives its worker, is listed like any message, and needs no table of its own: its progress is the data of its
newest message. What it changes is a part of an action of the job's name, so that it can be undone: at once, or by
another job. A page is moved in the transaction that ends its message and sends the next one. So if a worker dies,
the next worker moves, and counts, exactly what was not committed.

Each message of a job waits and runs only for milliseconds, so cancelling it would come too late. To stop a job, one
more message is sent, which does nothing itself: each step first looks for that message in every table.
"""

import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from django.apps import apps
from django.contrib import messages
from django.contrib.admin.models import LogEntry
from django.contrib.admin.views.main import ERROR_FLAG, IGNORED_PARAMS, PAGE_VAR
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.core.signing import BadSignature, Signer
from django.db import transaction
from django.db.models import QuerySet
from django.forms import BooleanField
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _, gettext_lazy, ngettext_lazy

from django_delayq.admin.access import (
    PARAMETER,
    address,
    alias_of,
    kept_name,
    message_address,
    operator_of,
    redirected_on_outage,
    render_about,
    store_of,
)
from django_delayq.admin.bulk.changes import (
    KEY,
    PAGE,
    TABLES,
    Change,
    Page,
    action_name,
    amount_of,
    audited_name,
    label_of,
    last_pk,
    move,
    next_page,
    permission_of,
)
from django_delayq.admin.bulk.undo import action_named, put_back, undo_link
from django_delayq.admin.formatting import listed, now_utc, visible
from django_delayq.admin.lists.bounded import NUL
from django_delayq.admin.lists.filters import asked, condition, is_condition
from django_delayq.admin.lists.kept_searches import for_log, search_of
from django_delayq.admin.lists.search import asks_for_data, find, find_data
from django_delayq.admin.log import Chosen, correct, in_english, log_selection, without
from django_delayq.admin.message.errors import hide_errors
from django_delayq.admin.message.page import what_next
from django_delayq.admin.message.payload import is_masked
from django_delayq.admin.visibility import sees_all, visible_rows
from django_delayq.api.handlers import delay_execute
from django_delayq.api.send import send_own_message
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Action, covering
from django_delayq.conf import DEFAULT_QUEUE, alias_names, get_alias
from django_delayq.core.codec import decode_data, dumps
from django_delayq.core.errors import Bury, DataMismatch, DelayqError
from django_delayq.core.message import Message, Sent
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage
from django_delayq.support.audit import Operator, record
from django_delayq.support.timestamps import from_ms, to_epoch_ms
from django_delayq.translation import translated

NAME = re.compile("[0-9a-f]{32}")
"""The form of a job's name."""

AGAIN_S = 2
"""Seconds after which a job's page reloads itself."""

LOOKED = 2_000
"""The most payloads that a step looks into. There is a limit because on SQLite nobody else can write meanwhile."""

_SIGNER = Signer(salt="django_delayq.admin.job")

_LOGGED = "job:"
_BEGUN = gettext_lazy("%(move)s: begun")
_OF_LISTS = {PARAMETER, ERROR_FLAG, PAGE_VAR, *IGNORED_PARAMS}


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice of rows of a table: those that match a list's filters and search, up to the primary key `until`.

    Each step of a job evaluates it again, but filters such as "the last hour" count back from `now_ms`.
    """

    alias: str
    model: str
    now_ms: int
    until: int
    conditions: Mapping[str, str] = field(default_factory=dict)
    search: str = ""

    @property
    def is_in_data(self) -> bool:
        """Return whether the search looks into payloads."""
        return asks_for_data(self.search)

    def next_page(self, user: Any, after: int) -> Page | None:
        """Return the next page of rows that match now, with primary keys over `after`; None after the last."""
        if not self.is_in_data:
            return next_page(self.rows(user), after=after, until=self.until)
        rows = self.rows(user).filter(pk__gt=after, pk__lte=self.until).order_by("pk")
        found = find_data(rows, self.search, most_looked=LOOKED, most_found=PAGE)
        if not found.looked:
            return None
        return Page(list(rows.filter(pk__in=found.pks).defer("data")), found.looked, found.last)

    def rows(self, user: Any) -> QuerySet[Any]:
        """Return the rows that match now, and that the user may see.

        A search of payloads is not applied here: `next_page` looks into each row. Conditions such as "the last hour"
        count back from `now_ms`, when the selection was made.
        """
        rows = visible_rows(user, model_named(self.model), self.alias)
        for parameter, value in self.conditions.items():
            rows = rows.filter(condition(parameter, value, from_ms(self.now_ms), self.alias))
        if self.search and not self.is_in_data:
            rows, _is_many = find(rows, self.search)
        return rows

    def chosen(self) -> Chosen:
        """Return the selection for the log. A value that is searched for in payloads is hashed."""
        return Chosen(self.alias, {**self.conditions, **({"search": for_log(self.search)} if self.search else {})})

    def words(self) -> str:
        """Return the conditions for people, such as `key=order.close, search=order:*`.

        A value that is searched for in payloads is hashed.
        """
        return self.chosen().words()

    def without(self, words: Collection[str], *, is_over: bool) -> "Selection":
        """Return the selection with a hash in place of its search, if that is for one of these `words` (ids and tags).

        If the job `is_over`, the value of a search in payloads is hashed too, because no step needs it any more.
        """
        is_of_no_use = is_over and self.is_in_data
        return replace(self, search=for_log(self.search) if is_of_no_use else without(self.search, words))


def selection_of(request: HttpRequest, model: type[MessageRow]) -> Selection:
    """Return the selection of all rows that the list at this address shows.

    Raises `ValueError` if the site narrows the list by a filter of its own: a job would take more than the list shows.
    """
    foreign = sorted(name for name in request.GET if not (name in _OF_LISTS or is_condition(name)))
    if foreign:
        raise ValueError(
            _("The filter %(names)s is the site's own, and can't be repeated in the background: choose fewer messages.")
            % {"names": listed(foreign)}
        )
    alias = alias_of(request)
    return Selection(
        alias=alias,
        model=str(model._meta.model_name),
        now_ms=to_epoch_ms(now_utc()),
        until=last_pk(model, alias),
        conditions=asked(request.GET.dict()),
        search=search_of(request),
    )


def is_all(request: HttpRequest) -> bool:
    """Return whether an action is meant for all that match the filter, and not only for the ticked rows."""
    return BooleanField().to_python(request.POST.get("select_across", "0"))


def model_named(name: str) -> type[MessageRow]:
    """Return the model of one of the three tables."""
    model: type[MessageRow] = apps.get_model("delayq", name)
    return model


@dataclass(frozen=True, slots=True)
class Job:
    """A job as each of its messages carries it: what to do, for whom, and how far it has come.

    `total` and `looked` count the rows that are looked at. A search in payloads looks at more rows than it moves or
    leaves. `entry` is the primary key of its first entry in Django's log, where each step says how far it has come. The
    signature covers all other fields and the message's id. So only somebody who knows the SECRET_KEY can make a job, or
    pass one step off as another.
    """

    name: str
    user_id: str
    selection: Selection
    change: Change
    total: int
    after: int = 0
    moved: int = 0
    left: int = 0
    looked: int = 0
    over: bool = False
    stopped: bool = False
    entry: int = 0
    signature: str = ""


def register(using: str) -> None:
    """Register the handler of background jobs for the alias `using`."""
    delay_execute(KEY, using=using, max_attempts=10, atomic=True)(move_next_page)


def start(name: str, request: HttpRequest, selection: Selection, change: Change, total: int) -> None:
    """Send the first message of a job on about `total` rows, and log it.

    A name starts one job, however often this is called.
    """
    job = Job(name, str(request.user.pk), selection, change, total)
    with _with_its_entry(job):
        entry = _log(job, request.user.pk, _BEGUN)
        is_new = _send(replace(job, entry=entry.pk)).created
        if not is_new:
            entry.delete()
    if is_new:
        _record(job, operator_of(request), "begun", filter=selection.words() or "*", until=selection.until or None)


def progress(alias: str, name: str) -> tuple[Job, MessageRow] | None:
    """Return a job as its newest message carries it, and that message.

    Return None if there is no such job. A message of a site that has the tag of the job does not count, nor does one
    that carries a job of another alias, which may be gone from the settings.
    """
    for rows in _rows(alias, key=KEY, tag=_tag(name)):
        row = rows.order_by("-pk").first()
        job = None if row is None else _decoded(row.data)
        if job is not None and row is not None and job.selection.alias == alias:
            return job, row
    return None


def posted_name(request: HttpRequest) -> str:
    """Return the name of the job that the confirmation page starts: the one in its form, or else a new one.

    Because the form sends the name back, sending the form twice starts only one job.
    """
    named = request.POST.get("job", "")
    return named if NAME.fullmatch(named) else uuid.uuid4().hex


def goes_on(job: Job, row: MessageRow) -> bool:
    """Return whether a job, which `progress` has found, goes on: it is not over, nor was it cancelled, nor failed."""
    return isinstance(row, ReadyMessage) and not job.over


def stop(request: HttpRequest, job: Job) -> None:
    """Tell a job to end before its next step, and log who did."""
    id = _stop_id(job)
    with _with_its_entry(job):
        send_own_message(KEY, _signed(replace(job, over=True), id), id=id, using=job.selection.alias)
        _log(job, request.user.pk, gettext_lazy("%(move)s: told to stop"))
    _record(job, operator_of(request), "told to stop")


def go_on(request: HttpRequest, job: Job, row: MessageRow) -> None:
    """Rescue the failed message of a job. If that succeeds, log who did it."""
    with _with_its_entry(job):
        is_rescued = get_backend(row.alias).queue.rescue([row.message_id]) == [True]
        if is_rescued:
            _log(job, request.user.pk, gettext_lazy("%(move)s: continued"))
    if is_rescued:
        _record(job, operator_of(request), "continued")


def _with_its_entry(job: Job) -> AbstractContextManager[None]:
    """Return a transaction for a change to a job and its log entry: without the entry, nothing is changed."""
    return transaction.atomic(using=get_alias(job.selection.alias).database)


def pauses(alias: str) -> list[str]:
    """Return the names of the pauses that cover the queue and key of jobs; empty if that can't be known now."""
    with suppress(DelayqError):
        found = covering(get_backend(alias).presence.pauses(), DEFAULT_QUEUE, KEY)
        return [translated(pause.names) for pause in found]
    return []


def is_told_to_stop(job: Job) -> bool:
    """Return whether `stop` was called for this job."""
    id = _stop_id(job)
    found = (data for rows in _rows(job.selection.alias, message_id=id) for data in rows.values_list("data", flat=True))
    return any(_is_signed(told, id) for told in map(_decoded, found) if told is not None)


def logged(object_id: str) -> tuple[str, str] | None:
    """Return the alias and name of the job whose log entries have this `object_id`; None if it is not a job's."""
    alias, _colon, name = object_id.removeprefix(_LOGGED).rpartition(":")
    return (alias, name) if object_id.startswith(_LOGGED) and NAME.fullmatch(name) else None


class Step(NamedTuple):
    """The result of a step: the ids it moved, how many it left, how many it looked at, and the last row of these."""

    ids: list[str]
    left: int
    looked: int
    last: int


def move_next_page(message: Message[Job]) -> None:
    """Move a page, correct the job's entry in the log, and send the message for the next page.

    A job that was told to stop, or was undone meanwhile, ends. Raises `Bury` for one that nobody asked for here, or
    whose operator may not do it any more.
    """
    job = message.data
    _check_is_ours(message)
    if job.over or _has_gone_on(job):
        return
    if is_told_to_stop(job) or _undone_by(job):
        _end(replace(job, stopped=True))
        return
    user = _operator(job)
    step = (_put_back if job.change.undoes else _move)(job, user)
    if step is None:
        _end(job)
        return
    further = replace(
        job,
        after=step.last,
        moved=job.moved + len(step.ids),
        left=job.left + step.left,
        looked=job.looked + step.looked,
    )
    if step.ids:
        _record_step(further, user, "a page", step.ids, moved=len(step.ids), so_far=further.moved)
    if step.ids or step.left:
        correct(job.entry, _said(further, _BEGUN, _so_far(further)))
    _send(further)


def _move(job: Job, user: Any) -> Step | None:
    """Move the next page of the selection, as a part of an action of the job's name. Return None after the last."""
    selection = job.selection
    page = selection.next_page(user, job.after)
    if page is None:
        return None
    visible = visible_rows(user, model_named(selection.model), selection.alias)
    undoable = Action(job.name, kept_name(user))
    done = move(selection.alias, page.rows, job.change, visible, job.moved, undoable)
    return Step([row.message_id for row in done.rows], len(done.left), page.looked, page.last)


def _undone_by(job: Job) -> str:
    """Return who has undone what the job did, "-" if nobody said; empty if it was not undone."""
    action = action_named(job.selection.alias, job.name)
    return "" if action is None or action.undone_at is None else visible(action.undone_by) or "-"


def _put_back(job: Job, user: Any) -> Step | None:
    """Put back the next page of what an action has changed. Return None after the last."""
    alias, name = job.selection.alias, job.change.undoes
    pks = store_of(alias).changed_by(name, job.after)
    if not pks:
        return None
    done = put_back(user, alias, name, pks)
    return Step([row.message_id for row in done.rows], done.left, len(pks), pks[-1])


def forget(alias: str, words: Collection[str]) -> int:
    """Replace these ids and tags with hashes in the searches of jobs, and return how many messages that changed.

    In a message of the finish table, whatever was searched for in payloads is hashed too, because no step needs it any
    more. A message without a valid signature gets none now either.
    """
    changed = 0
    for rows in _rows(alias, key=KEY, message_id__gte=f"{KEY}:", message_id__lt=f"{KEY};"):
        for row in rows.order_by("message_id").only("message_id", "data"):
            job = _decoded(row.data)
            if job is None:
                continue
            selection = job.selection.without(words, is_over=isinstance(row, FinishMessage))
            if selection == job.selection:
                continue
            left = replace(job, selection=selection)
            if _is_signed(job, row.message_id):
                left = _signed(left, row.message_id)
            changed += rows.filter(pk=row.pk).update(data=dumps(left).decode())
    return changed


def _check_is_ours(message: Message[Job]) -> None:
    """Raise `Bury` unless the job has a valid signature, and this message has a row that our worker leases.

    So nobody can begin a job by writing a message into a broker, or a row into the table.
    """
    job = message.data
    if not _is_signed(job, message.id):
        raise Bury(
            "This job of the admin has no valid signature: it was begun by an earlier version, under another "
            "SECRET_KEY, or by somebody else. Nothing was done. Ask for it again in the admin."
        )
    alias = job.selection.alias
    rows = ReadyMessage.objects.filter(alias=alias, message_id=message.id, token=message.token)
    if alias not in alias_names() or not rows.using(get_alias(alias).database).exists():
        raise Bury("This job of the admin has no row that is leased here, so nothing was done.")


def _operator(job: Job) -> Any:
    """Return the user who asked for a job. Raises `Bury` if that user may not do it any more."""
    user: Any = get_user_model()._base_manager.filter(pk=job.user_id).first()
    needed = [f"view_{job.selection.model}", permission_of(job.change)]
    needed += ["view_payload"] if job.selection.is_in_data else []
    may = user is not None and user.is_active and user.is_staff and user.has_perms([f"delayq.{one}" for one in needed])
    if not may or (job.selection.is_in_data and is_masked(job.selection.alias)):
        raise Bury("Who asked for this may not do it any more, so no more was done. Ask for the rest again.")
    return user


def _has_gone_on(job: Job) -> bool:
    """Return whether the job has gone on already, so that this message has nothing to do.

    After the first message of the job, any other one shows that; after a later message, only the last one of the job
    does. A message may run twice, because somebody may send it again under its id after it has ended.
    """
    rows = _rows(job.selection.alias, key=KEY, tag=_tag(job.name))
    if job.after:
        return any(each.filter(message_id=_id(replace(job, over=True))).exists() for each in rows)
    return any(each.exclude(message_id=_id(job)).exists() for each in rows)


def _decoded(data: str) -> Job | None:
    """Return the job that a message carries; None if it carries none."""
    try:
        job: Job = decode_data(data.encode(), Job)
    except DataMismatch:
        return None
    return job


def _signed(job: Job, id: str) -> Job:
    return replace(job, signature=_SIGNER.signature(_to_sign(job, id)))


def _is_signed(job: Job, id: str) -> bool:
    signed = _to_sign(job, id)
    try:
        return _SIGNER.unsign(f"{signed}{_SIGNER.sep}{job.signature}") == signed
    except BadSignature:
        return False


def _to_sign(job: Job, id: str) -> str:
    return f"{id} {dumps(replace(job, signature='')).decode()}"


def _rows(alias: str, **named: str) -> Iterator[QuerySet[Any]]:
    """Yield a query of the matching rows for each table, in an order in which a message that moves on is still met."""
    using = get_alias(alias).database
    return (model._default_manager.using(using).filter(alias=alias, **named) for model in TABLES)


def _send(job: Job) -> Sent:
    id = _id(job)
    return send_own_message(KEY, _signed(job, id), id=id, tag=_tag(job.name), using=job.selection.alias)


def _id(job: Job) -> str:
    return f"{_tag(job.name)}:{'over' if job.over else job.after}"


def _stop_id(job: Job) -> str:
    return f"{_tag(job.name)}:stop"


def _tag(name: str) -> str:
    return f"{KEY}:{name}"


def _end(job: Job) -> None:
    user = get_user_model()._base_manager.filter(pk=job.user_id).first()
    if user is not None:  # otherwise the user was deleted with all entries, and Django takes no more of them
        left, stopped = f", left {job.left}" if job.left else "", ", stopped" if job.stopped else ""
        _log(
            job,
            user.pk,
            ngettext_lazy("%(move)s: %(count)d message", "%(move)s: %(count)d messages", "count"),
            left + stopped,
        )
        _record_step(job, user, "stopped" if job.stopped else "done", moved=job.moved, left=job.left)
    _send(replace(job, over=True))


def _record(job: Job, operator: Operator, what: str, ids: Sequence[str] = (), /, **facts: object) -> None:
    """Write an audit line about a job."""
    named = {"job": job.name, "by": amount_of(job.change), "what": what, **facts}
    record(operator, audited_name(job.change), job.selection.alias, ids, **named)


def _record_step(job: Job, user: Any, what: str, ids: Sequence[str] = (), /, **facts: object) -> None:
    """Write an audit line about what a step has done, once its transaction commits."""
    operator = Operator(user.get_username(), "a job in the background")
    said = partial(_record, job, operator, what, ids, **facts)
    transaction.on_commit(said, using=get_alias(job.selection.alias).database, robust=True)


def _log(job: Job, user_id: Any, said: Any, more: str = "") -> LogEntry:
    """Add an entry to Django's log, with a link to the job's page, and return it."""
    return log_selection(
        user_id,
        model_named(job.selection.model),
        job.selection.chosen(),
        _said(job, said, more),
        object_id=f"{_LOGGED}{job.selection.alias}:{job.name}",
    )


def _said(job: Job, said: Any, more: str = "") -> str:
    with in_english():
        return str(said % {"move": label_of(job.change), "count": job.moved}) + more


def _so_far(job: Job) -> str:
    """Return how far a job has come, for its first log entry, which may be the only one if the job is cut short."""
    return f", so far {job.moved} moved" + (f", {job.left} left" if job.left else "")


@redirected_on_outage
def job_page(admin: Any, request: HttpRequest, name: str) -> HttpResponse:
    """Render the progress of a job; by POST, stop it, or continue it if it failed.

    The page reloads itself while the job goes on. To stop or continue the job, a user needs the right to the same
    action of the list.
    """
    if not admin.has_view_permission(request):
        raise PermissionDenied
    job, row = _shown(admin, request, name)
    if not row.error.startswith(f"{Bury.__name__}: "):  # that is raised above, and quotes nothing
        hide_errors(request, [row])
    cancelled = isinstance(row, FinishMessage) and not job.over
    failed = isinstance(row, ErrorMessage)
    over = not goes_on(job, row)
    stopping = not over and is_told_to_stop(job)
    may_move = action_name(job.change) in {move.name for move in admin.buttons(request)}
    if request.method == "POST":
        if not may_move:
            raise PermissionDenied
        try:
            if "continue" in request.POST:
                if failed:
                    go_on(request, job, row)
            elif not (over or stopping):
                stop(request, job)
        except (DelayqError, ValueError) as error:
            messages.error(request, translated(error))
        return HttpResponseRedirect(job_address(request, job.selection.model, job.selection.alias, name))
    response = render_about(
        admin,
        request,
        "job",
        title=_("In the background"),
        job=job,
        heading=_heading(job),
        failed=failed,
        cancelled=cancelled,
        stopping=stopping,
        may_stop=may_move and not (over or stopping),
        may_go_on=may_move and failed,
        undone_by=_undone_by(job),
        undo=undo_link(admin, request, name) if may_move and over else "",
        message_address=message_address(request, row) if sees_all(request.user, row.alias) else "",
        row=row,
        what_next="" if over else what_next(row),
    )
    if not over:
        response.headers["Refresh"] = str(AGAIN_S)
    return response


def _heading(job: Job) -> str:
    """Return what a job does, and of what. The name that the admin gave an action tells people nothing."""
    what = job.change.undoes or job.selection.words() or _("all of them")
    label = label_of(job.change)
    return label if NAME.fullmatch(what) else f"{label}: {visible(what)}"


def _shown(admin: Any, request: HttpRequest, name: str) -> tuple[Job, MessageRow]:
    """Return a job of this list, and its newest message.

    Raises `Http404` if there is none, or if it is another user's and this user may not see all messages of the alias.
    """
    alias = alias_of(request)
    found = None if NUL in name else progress(alias, name)
    is_of_list = found is not None and found[0].selection.model == admin.opts.model_name
    if found and is_of_list and (found[0].user_id == str(request.user.pk) or sees_all(request.user, alias)):
        return found
    raise Http404(_("There is no such job any more."))


def job_address(request: HttpRequest, model: str, alias: str, name: str) -> str:
    """Return the address of a job's page."""
    return address(request, f"delayq_{model}_job", alias, name)
