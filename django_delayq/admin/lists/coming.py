"""Show what comes for a tag: steps of sequences that have not been put yet, and what follows batches."""

from collections.abc import Collection, Iterator
from datetime import datetime
from itertools import chain, islice
from typing import Any, NamedTuple

from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_delayq.admin.access import database_of, message_address
from django_delayq.admin.formatting import instant, now_utc, queue_words
from django_delayq.admin.visibility import visible_rows
from django_delayq.core.batches import batch_of
from django_delayq.core.codec import read
from django_delayq.core.requests import Header
from django_delayq.models import BatchRow, ErrorMessage, MessageRow, ReadyMessage, SequenceRow

MOST = 20
"""The most sequences, and the most batches, that the page shows."""
MOST_LOOKED = 10 * MOST
"""The most batches at which the page looks: the user may not see each of them."""


class Coming(NamedTuple):
    """One line of the page: a message to come, and one that waits or runs after which it comes.

    `source` is the sequence or the batch. `step` is the number of the step, or what is left of the batch.
    """

    source: str
    step: int | str
    key: str
    queue: str
    when: Any
    after: str
    address: str


def coming(request: HttpRequest, alias: str, text: str, models: Collection[type[MessageRow]]) -> list[Coming]:
    """Return what comes by sequences and batches that have the tag `text`, or the message with this id.

    It is shown to a user who sees the message to which the sequence has come, or one that is left of the batch. These
    are in `models`.
    """
    if "\0" in text:  # no tag and no id has it, and PostgreSQL takes no such text
        return []
    steps = _steps(request, alias, text, models)
    return [*steps, *islice(_ends(request, alias, text), MOST)] if ReadyMessage in models else steps


def _steps(request: HttpRequest, alias: str, text: str, models: Collection[type[MessageRow]]) -> list[Coming]:
    from django_delayq.store import sequences  # late, as in dashboard/urls.py

    database = database_of(alias)
    rows = [*sequences.under_way(database, text, MOST), *filter(None, [sequences.of_message(database, text)])]
    if not rows:
        return []
    by_message = {row.message_id: row for row in rows}
    messages: dict[str, MessageRow] = {}
    for model in (ErrorMessage, ReadyMessage):  # what waits under the id of a failed one is what it has come to
        if model in models:
            found = visible_rows(request.user, model, alias).filter(message_id__in=list(by_message))
            messages |= {message.message_id: message for message in found}
    return [line for id, message in messages.items() for line in _steps_after(request, by_message[id], message)]


def _steps_after(request: HttpRequest, row: SequenceRow, message: MessageRow) -> Iterator[Coming]:
    from django_delayq.api.sequences import following  # late, as above

    ends_at: datetime | None = None if isinstance(message, ErrorMessage) else max(message.due_at, now_utc())
    for step in following(row, ends_at):
        yield Coming(
            source=f"{row.name} {row.sequence_id}",
            step=step.number,
            key=step.key,
            queue=queue_words(step.queue),
            when="-" if step.due_at is None else instant(step.due_at),
            after=message.message_id,
            address=message_address(request, message),
        )


def _ends(request: HttpRequest, alias: str, text: str) -> Iterator[Coming]:
    """Yield what follows batches that are not done."""
    from django_delayq.store import batches  # late, as above

    database, visible = database_of(alias), visible_rows(request.user, ReadyMessage, alias)
    for row in islice(chain(_batch_of(alias, text), batches.tagged(database, text)), MOST_LOOKED):
        member = batches.members(visible, row.batch_id).order_by("message_id").first()
        if member is None:
            continue
        header = read(row.header, Header)
        left = batches.count_left(database, row.batch_id, row.total)
        yield Coming(
            source=row.batch_id,
            step=_("%(left)d of %(total)d left") % {"left": left, "total": row.total},
            key=header.key,
            queue=queue_words(header.queue),
            when="-",
            after=member.message_id,
            address=message_address(request, member),
        )


def _batch_of(alias: str, message_id: str) -> Iterator[BatchRow]:
    from django_delayq.store import batches  # late, as above

    row = batches.find(database_of(alias), batch_of(message_id) or message_id)
    if row is not None:
        yield row
