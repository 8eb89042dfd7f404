"""Put the message that follows a batch, in the transaction that ends the last of its members.

The ids of members begin with that of their batch. So the index of ids says how many still wait or run, and no member
costs a row of its own, nor a counter that all workers would write. A row of `delayq_batch` is there until the batch is
done.

While very many members are left, an end only looks. Once few are, ends of one batch take turns by its row: the last one
sees that none is left. If so many end at once that each sees the others' members, or if the last is cancelled, upkeep
puts the message.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from django.db.models import QuerySet

from django_delayq.brokers.base import BATCH, Alarm, Header, NewMessage, pages
from django_delayq.core.codec import dumps, read
from django_delayq.models import BatchRow, MessageRow
from django_delayq.store.database import Database, in_transaction
from django_delayq.store.enqueue import enqueue
from django_delayq.store.undo import UNSENT
from django_delayq.support.timestamps import from_ms

M = TypeVar("M", bound=MessageRow)
FEW = 2 * BATCH
"""From how many members on, ends of a batch take turns."""
PAGE = 100
"""How many batches upkeep looks at in one transaction."""
AGAIN = timedelta(seconds=10)
"""How often upkeep looks at a batch."""


def create(database: Database, id: str, header: Header, data: bytes) -> list[Alarm]:
    """Write a batch in the transaction that has enqueued its members. One without members is done at once."""
    total = _sent(database, id)
    row = BatchRow(
        alias=database.alias,
        batch_id=id,
        header=dumps(header).decode(),
        data=data.decode(),
        total=total,
    )
    row.look_at = from_ms(database.now_ms()) + AGAIN
    if not total:
        return _finish(database, [row])
    row.save(using=database.using, force_insert=True)
    return []


def end(database: Database, ids: Iterable[str]) -> list[Alarm]:
    """Put what follows those of the batches of which no member is left. The caller's transaction has ended some.

    Return alarms to schedule.
    """
    near = [id for id in sorted(set(ids)) if count_left(database, id, FEW) < FEW]
    done = [row for id in near if (row := _locked(database, id)) and not count_left(database, id, 1)]
    return _finish(database, done)


@in_transaction
def mend(database: Database) -> tuple[list[Alarm], bool]:
    """Put what follows batches whose last member has ended unnoticed. Return alarms, and whether there may be more."""
    database.begin_with_write()
    now = from_ms(database.now_ms())
    due = _rows(database).filter(look_at__lte=now).order_by("look_at")
    rows = list(database.lock_free(due)[:PAGE])
    done = [row for row in rows if not count_left(database, row.batch_id, 1)]
    left = [row for row in rows if row not in done]
    for row in left:
        row.look_at = now + AGAIN
    _rows(database).bulk_update(left, ["look_at"])
    return _finish(database, done), len(rows) == PAGE


def find(database: Database, id: str) -> BatchRow | None:
    """Return the batch with this id, if it is not done."""
    return _rows(database).filter(batch_id=id).first()


def tagged(database: Database, tag: str) -> Iterator[BatchRow]:
    """Yield the batches that are not done and whose last message has the tag, the newest first.

    Every row of the alias is read, because the tags are a part of the header: these are only the batches under way.
    """
    rows = _rows(database).filter(header__contains=dumps(tag).decode()).order_by("-pk")
    return (row for row in rows if tag in read(row.header, Header).tags)


def members(rows: QuerySet[M], id: str) -> QuerySet[M]:
    """Return those of `rows` that are members of a batch."""
    first, end = _span(id)
    return rows.filter(message_id__gte=first, message_id__lt=end)


def count_left(database: Database, id: str, most: int) -> int:
    """Return how many members wait or run, counted up to `most`.

    They are read from the last that was sent on, because the entries of those that have ended are at the other end.
    """
    ((number,),) = database.rows(
        "SELECT count(*) FROM (SELECT 1 AS one FROM delayq_ready r"
        f" WHERE {database.dialect.of_alias_by_id} AND r.message_id >= %s AND r.message_id < %s"
        f" ORDER BY r.message_id DESC LIMIT {most}) AS members",
        [database.alias, *_span(id)],
    )
    return int(number)


def are_any(database: Database) -> bool:
    """Return whether a batch is under way."""
    return _rows(database).exists()


@in_transaction
def end_unnoticed(database: Database) -> tuple[None, list[Alarm]]:
    """Put what follows all batches of which no member is left, before upkeep looks at them. Return alarms."""
    database.begin_with_write()
    return None, end(database, list(_rows(database).values_list("batch_id", flat=True)))


def _locked(database: Database, id: str) -> BatchRow | None:
    return _rows(database).filter(batch_id=id).select_for_update().first()


def _sent(database: Database, id: str) -> int:
    """Return how many members this transaction has sent, without those of savepoints that were rolled back.

    Some may have been cancelled by it.
    """
    of_members = "AND r.message_id >= %s AND r.message_id < %s"
    dialect = database.dialect
    ((number,),) = database.rows(
        f"SELECT (SELECT count(*) FROM delayq_ready r WHERE {dialect.of_alias_by_id} {of_members})"
        " + (SELECT count(DISTINCT r.message_id) FROM delayq_finish r"
        f" WHERE {dialect.of_alias_by_ended_id} {of_members} AND NOT EXISTS"
        " (SELECT 1 FROM delayq_ready w WHERE w.message_id = r.message_id AND w.alias = r.alias))",
        [database.alias, *_span(id)] * 2,
    )
    return int(number)


def _span(id: str) -> tuple[str, str]:
    """Return the ids between which those of all members are."""
    return f"{id}/", f"{id}0"  # the character after "/"


def _finish(database: Database, rows: Sequence[BatchRow]) -> list[Alarm]:
    """Put the message that follows each of these batches, and remove their rows. Return alarms to schedule."""
    messages = [NewMessage(row.batch_id, read(row.header, Header), _data_of(database, row)) for row in rows]
    alarms = [alarm for page in pages(messages, BATCH) for alarm in enqueue(database, page, "keep")[1]]
    if pks := [row.pk for row in rows if row.pk]:
        _rows(database).filter(pk__in=pks).delete()
    return alarms


def _data_of(database: Database, row: BatchRow) -> bytes:
    """Return the data of the message that follows, as JSON."""
    return body_of(row, ended(database, row.batch_id))


def ended(database: Database, id: str) -> dict[str, int]:
    """Return how many members of a batch have ended each way: as they ended last, if they were sent again.

    A send that was undone is none.
    """
    of_alias = database.dialect.of_alias_by_ended_id
    columns = "r.message_id, r.ended_at, r.id"
    of_members = f"{of_alias} AND r.message_id >= %s AND r.message_id < %s"
    counts = database.rows(
        "SELECT outcome, count(*) FROM (SELECT outcome,"
        " row_number() OVER (PARTITION BY message_id ORDER BY ended_at DESC, id DESC) AS age"
        f" FROM (SELECT {columns}, r.outcome FROM delayq_finish r WHERE {of_members} AND r.error <> %s UNION ALL"
        f" SELECT {columns}, 'failed' FROM delayq_error r WHERE {of_members}) AS every_end) AS ends"
        " WHERE age = 1 GROUP BY outcome",
        [database.alias, *_span(id), UNSENT, database.alias, *_span(id)],
    )
    return {str(outcome): int(number) for outcome, number in counts}


def body_of(row: BatchRow, counts: Mapping[str, int]) -> bytes:
    """Return the data of the message that follows a batch of which so many have ended each way, as JSON."""
    done = {
        "batch": row.batch_id,
        "total": row.total,
        "finished": int(counts.get("finished", 0)),
        "failed": int(counts.get("failed", 0)),
        "cancelled": int(counts.get("cancelled", 0)),
    }
    return dumps(done)[:-1] + b',"data":' + row.data.encode() + b"}"


def _rows(database: Database) -> QuerySet[BatchRow]:
    return BatchRow.objects.using(database.using).filter(alias=database.alias)
