"""Rows of messages that have ended, made directly."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from django_delayq.conf import get_alias
from django_delayq.models import ErrorMessage, FinishMessage
from django_delayq.store.audit import mend_sequence
from django_delayq.store.database import Database

START = datetime(2026, 1, 1, 23, 59, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def row(using: str, pk: int, **fields: Any) -> dict[str, Any]:
    """Return what a row has: due a minute after the other, run a second late for two seconds, of one of two keys."""
    due_at = START + pk * MINUTE
    return {
        "id": pk,
        "alias": using,
        "message_id": f"m{pk}",
        "queue": "default",
        "key": "a" if pk % 2 else "b/c=d",
        "data": "{}",
        "due_at": due_at,
        "scheduled_at": due_at,
        "sent_at": START,
        "at_most_once": False,
        "failures": 0,
        "crashes": 0,
        "error": "",
        "worker": "w",
        "history": "[]",
        "started_at": due_at + timedelta(seconds=1),
        "ended_at": due_at + timedelta(seconds=3),
        **fields,
    }


def finish(using: str, pks: Iterable[int], **fields: Any) -> None:
    """Messages that have finished."""
    rows = [FinishMessage(**{"outcome": "finished", **row(using, pk, **fields)}) for pk in pks]
    FinishMessage.objects.using(get_alias(using).database).bulk_create(rows)
    _move_sequence_on(using)


def fail(using: str, pks: Iterable[int], **fields: Any) -> None:
    """Messages that were buried."""
    given = {"detail": "Traceback", "fingerprint": "ValueError in shop", "error": "e", "failures": 1, **fields}
    rows = [ErrorMessage(**row(using, pk, **given)) for pk in pks]
    ErrorMessage.objects.using(get_alias(using).database).bulk_create(rows)
    _move_sequence_on(using)


def _move_sequence_on(using: str) -> None:
    """Leave the sequence of primary keys ahead of those that were chosen here."""
    mend_sequence(Database(using, get_alias(using).database))
