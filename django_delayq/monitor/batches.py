"""Say which batch a message is a member of, how many of the members have ended, and what follows."""

from dataclasses import dataclass

from django.utils.translation import gettext as _

from django_delayq.core.batches import batch_of
from django_delayq.core.codec import read
from django_delayq.core.requests import Header
from django_delayq.store import batches, queries
from django_delayq.store.database import Database


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """A batch that is not done: how many of its `total` members have ended, and the key of the message that follows."""

    id: str
    key: str
    total: int
    ended: int


def find(database: Database, id: str) -> BatchInfo | None:
    """Return the batch with this id, if it is not done."""
    row = batches.find(database, id)
    if row is None:
        return None
    ended = row.total - batches.count_left(database, id, row.total)
    return BatchInfo(id, read(row.header, Header).key, row.total, ended)


def in_words(info: BatchInfo) -> str:
    """Return in the active language how far a batch is."""
    return " ".join([_("It is a batch that is not done."), _progress(info)])


def of_member(database: Database, message_id: str) -> tuple[BatchInfo | None, str]:
    """Return the batch that a message is a member of, and in the active language how far it is.

    If the batch is done, there are only words. If there never was one, there is neither: a site may give any message
    such an id.
    """
    id = batch_of(message_id)
    info = None if id is None else find(database, id)
    if info is not None:
        words = _("It is a member of the batch %(id)s.") % {"id": repr(id)}
        return info, f"{words} {_progress(info)}"
    if id is None or queries.get(database, id) is None:
        return None, ""
    return None, _("It is a member of the batch %(id)s, which is done.") % {"id": repr(id)}


def _progress(info: BatchInfo) -> str:
    return _("Members that have ended: %(ended)d of %(total)d. Once all have, a message for %(key)s follows.") % {
        "ended": info.ended,
        "total": info.total,
        "key": repr(info.key),
    }
