"""The sequence of primary keys on PostgreSQL. It falls behind where rows came without it: restored, or replicated.

Then new messages get the primary keys of messages that have ended, and can't end themselves. Other databases have no
such sequence.
"""

from collections.abc import Sequence
from typing import NamedTuple

from django_delayq.store.database import Database

_ROOM = 10_000
"""How many keys others may take from the sequence while it is moved on: it must not go back."""


class Behind(NamedTuple):
    """A sequence whose next primary key is not above all that are taken."""

    name: str
    next: int
    taken: int

    def __str__(self) -> str:
        return f"the sequence {self.name} is behind: it gives {self.next} next, and rows have up to {self.taken}"


def behind(database: Database) -> Behind | None:
    """Return the sequence if it is behind, and this user may look at it."""
    if database.vendor != "postgresql":
        return None
    taken = ", ".join(f"(SELECT max(id) FROM delayq_{table})" for table in ("ready", "finish", "error"))
    found = database.rows(
        f"SELECT name, GREATEST(0, {taken}) FROM (SELECT pg_get_serial_sequence('delayq_ready', 'id')) AS of (name)"
        " WHERE has_sequence_privilege(name, 'SELECT')"
    )
    for name, highest in found:
        ((next_pk,),) = database.rows(f"SELECT last_value + is_called::int FROM {name}")  # last: it moves on meanwhile
        if next_pk <= highest:
            return Behind(name, next_pk, highest)
    return None


def mend(database: Database) -> list[str]:
    """Move the sequence on, and give a new primary key to each waiting or failed message whose key an ended one has.

    Rows that are held keep theirs: a call after the end of their lease finds them, and the sequence is not behind any
    more.
    """
    if database.vendor != "postgresql":
        return []
    found = behind(database)
    if found:
        database.rows("SELECT setval(%s, %s)", [found.name, found.taken + _ROOM])
    # An alarm is for the old one: it has to be placed again.
    waiting = _give_another(database, "ready", ["finish", "error"], "r.token IS NULL", ", placed = false")
    failed = _give_another(database, "error", ["finish"])
    told = [f"{found}: it is moved on"] if found else []
    if found or waiting:
        told.append(f"{waiting} waiting message(s) got another primary key")
    if failed:
        told.append(f"{failed} failed message(s) got another primary key")
    return [", and ".join(told)] if told else []


def _give_another(
    database: Database, table: str, others: Sequence[str], condition: str = "true", changes: str = ""
) -> int:
    """Give another primary key to the rows of a table whose key other messages have in other tables.

    Returns how many.
    """
    taken = " OR ".join(
        f"EXISTS (SELECT 1 FROM delayq_{other} e WHERE e.id = r.id AND e.message_id <> r.message_id)"
        for other in others
    )
    return database.changed(
        f"UPDATE delayq_{table} r SET id = nextval(pg_get_serial_sequence('delayq_ready', 'id')){changes}"
        f" WHERE r.alias = %s AND {condition} AND ({taken})",
        [database.alias],
    )
