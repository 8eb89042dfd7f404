"""Keep the tags of messages after their first, which is a column of the message's row.

A row of `delayq_tag` names its message by the primary key, which stays the same in all tables of messages: so nothing
that moves a message writes here. What removes a message for good removes its tags in the same transaction. Every
look-up goes on to the message's row, so a tag that a process of an earlier version has left behind leads nowhere.
"""

from collections.abc import Collection, Iterable, Sequence

from django_delayq.brokers.base import BATCH, Header, pages
from django_delayq.models import MessageRow
from django_delayq.store.database import Database
from django_delayq.store.sql.dialect import Sql


def write(database: Database, tags: Sequence[tuple[int, str]]) -> None:
    """Write tags, each with the primary key of its message. The caller's transaction has written the message."""
    for page in pages(tags, BATCH):
        new = database.dialect.values_table("new", {"pk": int, "tag": str}, page)
        database.changed(
            f"INSERT INTO delayq_tag (alias, tag, message_pk) SELECT %s, new.tag, new.pk FROM {new.text}",
            [database.alias, *new.parameters],
        )


def read(database: Database, pks: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """Return the tags of messages after their first, in order, by primary key."""
    found: dict[int, tuple[str, ...]] = {}
    for page in pages(pks, BATCH):
        of_pks = database.dialect.among("message_pk", page)
        rows = database.rows(f"SELECT id, message_pk, tag FROM delayq_tag WHERE {of_pks.text}", of_pks.parameters)
        for _id, pk, tag in sorted(rows):
            found[pk] = (*found.get(pk, ()), tag)
    return found


def add_to(database: Database, messages: Iterable[tuple[int, Header | MessageRow]]) -> None:
    """Set `more_tags` of messages, given with their primary keys. One without a first tag has no others."""
    tagged = [(pk, one) for pk, one in messages if one.tag is not None]
    found = read(database, [pk for pk, _ in tagged])
    for pk, one in tagged:
        one.more_tags = found.get(pk, ())


def rows_with(database: Database, tag: str, condition: str = "1 = 1", table: str = "delayq_ready") -> Sql:
    """Return SQL for FROM: the rows `r` of a table that have the tag, and for which `condition` holds."""
    by_first = database.dialect.pks_by_first_tag(database.alias, tag, table)
    pks = Sql(
        f"{by_first.text} UNION SELECT message_pk FROM delayq_tag WHERE tag = %s AND alias = %s",
        [*by_first.parameters, tag, database.alias],
    )
    return database.dialect.with_pks(pks, condition, table)


def still_with(database: Database, tag: str, pks: Collection[int]) -> set[int]:
    """Return which of these messages, which the caller's transaction has locked, have the tag after their first."""
    if not pks:
        return set()
    of_pks = database.dialect.among("message_pk", sorted(pks))
    found = database.rows(
        f"SELECT message_pk FROM delayq_tag WHERE tag = %s AND alias = %s AND {of_pks.text}{database.dialect.newest}",
        [tag, database.alias, *of_pks.parameters],
    )
    return {pk for (pk,) in found}


def pages_of_pks(database: Database, tag: str, size: int) -> Iterable[list[int]]:
    """Yield the primary keys of messages that have the tag after their first, at most `size` at a time."""
    last = 0
    while rows := database.rows(
        "SELECT message_pk FROM delayq_tag WHERE tag = %s AND alias = %s AND message_pk > %s"
        f" ORDER BY message_pk LIMIT {size}",
        [tag, database.alias, last],
    ):
        yield [pk for (pk,) in rows]
        ((last,),) = rows[-1:]


def forget(database: Database, tag: str) -> None:
    """Remove this tag where it belongs to no message: a process of an earlier version may have left it behind."""
    tables = "delayq_ready", "delayq_finish", "delayq_error"
    is_gone = " AND ".join(f"NOT EXISTS (SELECT 1 FROM {each} r WHERE r.id = delayq_tag.message_pk)" for each in tables)
    database.changed(f"DELETE FROM delayq_tag WHERE tag = %s AND alias = %s AND {is_gone}", [tag, database.alias])
