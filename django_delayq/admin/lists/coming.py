"""Show what comes for a tag: the steps of its sequences that have not been put yet."""

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from django.http import HttpRequest

from django_delayq.admin.access import database_of, message_address
from django_delayq.admin.formatting import instant, now_utc, queue_words
from django_delayq.admin.visibility import visible_rows
from django_delayq.models import ErrorMessage, MessageRow, ReadyMessage, SequenceRow

MOST = 20
"""The most sequences that the page shows."""


class Coming(NamedTuple):
    """One line of the page: a step to come, and the message after which it comes."""

    sequence: str
    number: int
    key: str
    queue: str
    when: Any
    after: str
    address: str


def coming(request: HttpRequest, alias: str, text: str, models: Collection[type[MessageRow]]) -> list[Coming]:
    """Return the steps to come of the sequences that have the tag `text`, or have come to the message with this id.

    They are shown to a user who sees the message to which the sequence has come, which is in one of `models`.
    """
    from django_delayq.store import sequences  # late, as in dashboard/urls.py

    if "\0" in text:  # no tag and no id has it, and PostgreSQL takes no such text
        return []
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
    return [line for id, message in messages.items() for line in _lines(request, by_message[id], message)]


def _lines(request: HttpRequest, row: SequenceRow, message: MessageRow) -> Iterator[Coming]:
    from django_delayq.api.sequences import following  # late, as above

    ends_at: datetime | None = None if isinstance(message, ErrorMessage) else max(message.due_at, now_utc())
    for step in following(row, ends_at):
        yield Coming(
            sequence=f"{row.name} {row.sequence_id}",
            number=step.number,
            key=step.key,
            queue=queue_words(step.queue),
            when="-" if step.due_at is None else instant(step.due_at),
            after=message.message_id,
            address=message_address(request, message),
        )
