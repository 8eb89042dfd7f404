"""Moves of more rows than a request should wait for: messages of our own; each moves a page and sends the next.

So a job survives its worker, is seen like any message, and needs no table: its progress is the data of its newest
message. A page is moved in the transaction that ends its message and sends the next, so that what a dead worker had
moved of it is moved, and counted, by the next one.

Each message waits and runs for milliseconds, so that cancelling it comes too late. A job is told to stop by one more
message, which does nothing itself: each step looks first whether it was sent, wherever it is by then.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django.utils.translation import gettext as _, ngettext

from django_delayq.admin.log import in_english, log_selection
from django_delayq.admin.moves import KEY, Change, label_of, move
from django_delayq.admin.selection import TABLES, Selection, model_named
from django_delayq.api.handlers import delay_execute
from django_delayq.api.send import send_delay_message
from django_delayq.brokers import get_broker
from django_delayq.brokers.base import Pause, covering
from django_delayq.conf import DEFAULT_QUEUE, get_alias
from django_delayq.core.codec import decode_data
from django_delayq.core.errors import DataMismatch, DelayqError
from django_delayq.core.message import Message
from django_delayq.core.sends import Sent
from django_delayq.models import MessageRow

NAME = re.compile("[0-9a-f]{32}")
"""What jobs are called."""

_LOGGED = "job:"


@dataclass(frozen=True, slots=True)
class Job:
    """A job as each of its messages carries it: what to do, for whom, and how far it has come.

    `total` and `looked` count what is looked at: of a search in payloads that is more than what is moved or left.
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
    """Have the workers of an alias run its jobs."""
    delay_execute(KEY, using=using, max_attempts=10, atomic=True)(move_next_page)


def start(name: str, user_id: Any, selection: Selection, change: Change, total: int) -> None:
    """Send the first message of a job on about `total` rows, and log it. A job is started once under a name, however
    often this is called."""
    job = Job(name, str(user_id), selection, change, total)
    if not _send(job).created:
        return
    with in_english():
        said = _("%(move)s: begun") % {"move": label_of(change)}
    _log(job, user_id, said)


def progress(alias: str, name: str) -> tuple[Job, MessageRow] | None:
    """The newest message of a job, and what it carries. None too for a message of that tag that is none of a job's."""
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
    if get_broker(row.alias).rescue([row.message_id]) == [True]:
        with in_english():
            said = _("%(move)s: run again") % {"move": label_of(job.change)}
        _log(job, user_id, said)


def pauses(alias: str) -> list[Pause]:
    """What is paused of the queue and key of jobs; empty where that can't be known now."""
    with suppress(DelayqError):
        return covering(get_broker(alias).pauses(), DEFAULT_QUEUE, KEY)
    return []


def is_told_to_stop(job: Job) -> bool:
    """Whether `stop` was called for this job."""
    return any(rows.exists() for rows in _rows(job.selection.alias, message_id=_stop_id(job)))


def logged(object_id: str) -> tuple[str, str] | None:
    """The alias and the name of the job that the log calls this; None for what is no job's."""
    alias, _colon, name = object_id.removeprefix(_LOGGED).rpartition(":")
    return (alias, name) if object_id.startswith(_LOGGED) and NAME.fullmatch(name) else None


def move_next_page(message: Message[Job]) -> None:
    """Move a page and send the next message; the last one says what was done."""
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
    """Whether a first message has sent the next. Of two with one id the second was sent after the first had ended."""
    return any(rows.exclude(message_id=_id(job)).exists() for rows in _rows(job.selection.alias, tag=_tag(job.name)))


def _rows(alias: str, **named: str) -> Iterator[QuerySet[Any]]:
    """What is called so, of one table after another: a message that moves on meanwhile is met in the next."""
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
    if user is not None:  # else the entries of who was deleted since are gone, and Django takes no more of them
        _log(job, user.pk, message)


def _log(job: Job, user_id: Any, message: str) -> None:
    """An entry that leads to the job's page."""
    selection = job.selection
    log_selection(
        user_id, model_named(selection.model), selection.words(), message, object_id=_log_id(selection.alias, job.name)
    )


def _log_id(alias: str, name: str) -> str:
    """What the log calls a job."""
    return f"{_LOGGED}{alias}:{name}"
