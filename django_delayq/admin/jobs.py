"""Moves of more rows than a request should wait for: messages of our own; each moves a page and sends the next.

So a job survives its worker, is seen and cancelled like any message, and needs no table: its progress is the data of
its newest message. A page is moved in the transaction that ends its message and sends the next, so that what a dead
worker had moved of it is moved, and counted, by the next one.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth import get_user_model
from django.utils.translation import ngettext

from django_delayq.admin.log import in_english, log_selection
from django_delayq.admin.moves import Change, label_of, move
from django_delayq.admin.selection import Selection, model_named
from django_delayq.codec import decode_data
from django_delayq.conf import get_alias
from django_delayq.errors import DataMismatch
from django_delayq.handlers import delay_execute
from django_delayq.message import Message
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage
from django_delayq.sending.one import send_delay_message

KEY = "delayq.move"


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


def register(using: str) -> None:
    """Have the workers of an alias run its jobs."""
    delay_execute(KEY, using=using, max_attempts=10, atomic=True)(move_next_page)


def start(name: str, user_id: Any, selection: Selection, change: Change, total: int) -> None:
    """Send the first message of a job on about `total` rows. A job is started once under a name, however often this is
    called."""
    _send(Job(name, str(user_id), selection, change, total))


def progress(alias: str, name: str) -> tuple[Job, MessageRow] | None:
    """The newest message of a job, and what it carries. None too for a message of that tag that is none of a job's."""
    using = get_alias(alias).database
    for model in (ReadyMessage, ErrorMessage, FinishMessage):
        row = model._default_manager.using(using).filter(alias=alias, tag=_tag(name)).order_by("-pk").first()
        if row is not None:
            with suppress(DataMismatch):
                return decode_data(row.data.encode(), Job), row
    return None


def move_next_page(message: Message[Job]) -> None:
    """Move a page and send the next message; the last one says what was done."""
    job = message.data
    if job.over or (not job.after and _has_gone_on(job)):
        return
    page = job.selection.next_page(job.after)
    if page is None:
        _log(job)
        _send(replace(job, over=True))
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
    using = get_alias(job.selection.alias).database
    return any(
        model._default_manager.using(using)
        .filter(alias=job.selection.alias, tag=_tag(job.name))
        .exclude(message_id=_id(job))
        .exists()
        for model in (ReadyMessage, ErrorMessage, FinishMessage)
    )


def _send(job: Job) -> None:
    send_delay_message(KEY, job, id=_id(job), tag=_tag(job.name), using=job.selection.alias)


def _id(job: Job) -> str:
    return f"{_tag(job.name)}:{'over' if job.over else job.after}"


def _tag(name: str) -> str:
    return f"{KEY}:{name}"


def _log(job: Job) -> None:
    with in_english():
        said = ngettext("%(move)s: %(count)d message", "%(move)s: %(count)d messages", job.moved)
        message = said % {"move": label_of(job.change), "count": job.moved}
    if job.left:
        message += f", left {job.left}"
    user = get_user_model()._base_manager.filter(pk=job.user_id).first()
    if user is not None:  # else the entries of who was deleted since are gone, and Django takes no more of them
        log_selection(user.pk, model_named(job.selection.model), job.selection.words(), message)
