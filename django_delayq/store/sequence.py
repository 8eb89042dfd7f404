"""The sequence of primary keys on PostgreSQL. It is behind where rows came without it: restored, or replicated.

Then new messages get the primary keys of some that have ended, and can't end. Other databases have no such sequence.
"""

from typing import NamedTuple

from django_delayq.store.database import Database

_ROOM = 10_000
"""What others may take of the sequence while it is moved on: it must not go back."""


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
    """Move the sequence on, and give another primary key to what waits under that of a message that has ended."""
    found = behind(database)
    if found is None:
        return []
    database.rows("SELECT setval(%s, %s)", [found.name, found.taken + _ROOM])
    ended = " OR ".join(
        f"EXISTS (SELECT 1 FROM delayq_{table} e WHERE e.id = r.id AND e.message_id <> r.message_id)"
        for table in ("finish", "error")
    )
    moved = database.changed(
        "UPDATE delayq_ready r SET id = nextval(%s), placed = false"  # its alarm is for the old one
        f" WHERE r.alias = %s AND r.token IS NULL AND ({ended})",
        [found.name, database.alias],
    )
    return [f"{found}: it is moved on, and {moved} waiting message(s) got another primary key"]
