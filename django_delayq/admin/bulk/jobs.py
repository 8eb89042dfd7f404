"""Move more rows than a request should wait for, by messages of our own: each moves a page and sends the next.

So a job survives its worker, is seen like any message, and needs no table: its progress is the data of its newest
message. A page is moved in the transaction that ends its message and sends the next. So the next worker moves, and
counts, what a dead worker had not committed.

Each message waits and runs for milliseconds, so cancelling it would come too late. One more message, which does
nothing itself, tells a job to stop: each step first looks for it in every table.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django.utils.translation import gettext as _, ngettext

from django_delayq.admin.bulk.moves import KEY, Change, label_of, move
from django_delayq.admin.bulk.selection import TABLES, Selection, model_named
from django_delayq.admin.log import in_english, log_selection
from django_delayq.api.handlers import delay_execute
from django_delayq.api.send import send_delay_message
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Pause, covering
from django_delayq.conf import DEFAULT_QUEUE, get_alias
from django_delayq.core.codec import decode_data
from django_delayq.core.errors import DataMismatch, DelayqError
from django_delayq.core.message import Message, Sent
from django_delayq.models import MessageRow

NAME = re.compile("[0-9a-f]{32}")
"""The form of a job's name."""

_LOGGED = "job:"


@dataclass(frozen=True, slots=True)
class Job:
    """A job as each of its messages carries it: what to do, for whom, and how far it has come.

    `total` and `looked` count the rows that are looked at. A search in payloads looks at more rows than it moves or
    leaves.
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


def register(using: str) -> None:
    """Register the handler of an alias's jobs with its workers."""
    delay_execute(KEY, using=using, max_attempts=10, atomic=True)(move_next_page)


def start(name: str, user_id: Any, selection: Selection, change: Change, total: int) -> None:
    """Send the first message of a job on about `total` rows, and log it.

    However often this is called, a job is started once under a name.
    """
    job = Job(name, str(user_id), selection, change, total)
    if not _send(job).created:
        return
    with in_english():
        said = _("%(move)s: begun") % {"move": label_of(change)}
    _log(job, user_id, said)


def progress(alias: str, name: str) -> tuple[Job, MessageRow] | None:
    """Return a job as its newest message carries it, and that message.

    Return None if there is no such job, also if a message that is not a job's has its tag.
    """
    for rows in _rows(alias, tag=_tag(name)):
        row = rows.order_by("-pk").first()
        if row is not None:
            with suppress(DataMismatch):
                return decode_data(row.data.encode(), Job), row
    return None


def stop(user_id: Any, job: Job) -> None:
    """Tell a job to end before its next step, and log who did."""
    using = job.selection.alias
    send_delay_message(KEY, replace(job, over=True), id=_stop_id(job), using=using)
    with in_english():
        said = _("%(move)s: told to stop") % {"move": label_of(job.change)}
    _log(job, user_id, said)


def go_on(user_id: Any, job: Job, row: MessageRow) -> None:
    """Run the failed message of a job again, and log who did."""
    if get_backend(row.alias).queue.rescue([row.message_id]) == [True]:
        with in_english():
            said = _("%(move)s: run again") % {"move": label_of(job.change)}
        _log(job, user_id, said)


def pauses(alias: str) -> list[Pause]:
    """Return the pauses that cover the queue and key of jobs; empty if that can't be known now."""
    with suppress(DelayqError):
        return covering(get_backend(alias).presence.pauses(), DEFAULT_QUEUE, KEY)
    return []


def is_told_to_stop(job: Job) -> bool:
    """Return whether `stop` was called for this job."""
    return any(rows.exists() for rows in _rows(job.selection.alias, message_id=_stop_id(job)))


def logged(object_id: str) -> tuple[str, str] | None:
    """Return the alias and name of the job that the log has under this id; None if it is not a job's."""
    alias, _colon, name = object_id.removeprefix(_LOGGED).rpartition(":")
    return (alias, name) if object_id.startswith(_LOGGED) and NAME.fullmatch(name) else None


def move_next_page(message: Message[Job]) -> None:
    """Move a page and send the next message. The last message logs what was done."""
    job = message.data
    if job.over or (not job.after and _has_gone_on(job)):
        return
    if is_told_to_stop(job):
        _end(replace(job, stopped=True))
        return
    page = job.selection.next_page(job.after)
    if page is None:
        _end(job)
        return
    done = move(job.selection.alias, page.rows, job.change)
    _send(
        replace(
            job,
            after=page.last,
            moved=job.moved + len(done.rows),
            left=job.left + len(done.left),
            looked=job.looked + page.looked,
        )
    )


def _has_gone_on(job: Job) -> bool:
    """Return whether a job's first message has already sent the next one.

    A first message may run twice, because it may be sent again under its id after it has ended.
    """
    return any(rows.exclude(message_id=_id(job)).exists() for rows in _rows(job.selection.alias, tag=_tag(job.name)))


def _rows(alias: str, **named: str) -> Iterator[QuerySet[Any]]:
    """Yield the matching rows, table by table. A message that moves on meanwhile is met in the next table."""
    using = get_alias(alias).database
    return (model._default_manager.using(using).filter(alias=alias, **named) for model in TABLES)


def _end(job: Job) -> None:
    _log_end(job)
    _send(replace(job, over=True))


def _send(job: Job) -> Sent:
    return send_delay_message(KEY, job, id=_id(job), tag=_tag(job.name), using=job.selection.alias)


def _id(job: Job) -> str:
    return f"{_tag(job.name)}:{'over' if job.over else job.after}"


def _stop_id(job: Job) -> str:
    return f"{_tag(job.name)}:stop"


def _tag(name: str) -> str:
    return f"{KEY}:{name}"


def _log_end(job: Job) -> None:
    with in_english():
        said = ngettext("%(move)s: %(count)d message", "%(move)s: %(count)d messages", job.moved)
        message = said % {"move": label_of(job.change), "count": job.moved}
    if job.left:
        message += f", left {job.left}"
    if job.stopped:
        message += ", stopped"
    user = get_user_model()._base_manager.filter(pk=job.user_id).first()
    if user is not None:  # else the user was deleted with all entries, and Django takes no more of them
        _log(job, user.pk, message)


def _log(job: Job, user_id: Any, message: str) -> None:
    """Add an entry to the log that leads to the job's page."""
    selection = job.selection
    log_selection(
        user_id, model_named(selection.model), selection.words(), message, object_id=_log_id(selection.alias, job.name)
    )


def _log_id(alias: str, name: str) -> str:
    """Return the id of a job in the log."""
    return f"{_LOGGED}{alias}:{name}"
