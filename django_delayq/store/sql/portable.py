"""The statements of SQLite, some of which other databases share: inserts and changes that return what they wrote.

Leases end by those of moves.py. SQLite has one writer at a time, so that no row is ever locked and to be skipped.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from django_delayq.brokers.base import NewMessage
from django_delayq.store.database import Database, Row, Sql
from django_delayq.store.sql.moves import apply as apply, finish_here as finish_here  # part of `Statements`
from django_delayq.store.sql.rows import SHARED


class Inserted(NamedTuple):
    """A row that was inserted, with its due time. `now_ms` is the time of the INSERT by the database's clock."""

    id: str
    pk: int
    due_ms: int
    now_ms: int


def insert(database: Database, messages: Sequence[NewMessage]) -> list[Inserted]:
    """See `Statements`."""
    values, parameters = values_of(database, messages)
    rows = database.rows(
        f"INSERT INTO delayq_ready ({SHARED}) VALUES {values}"
        f" {database.dialect.unless_there} RETURNING message_id, id, due_at, sent_at{database.notice}",
        parameters,
    )
    return [Inserted(*row[:4]) for row in rows]


def values_of(database: Database, messages: Sequence[NewMessage]) -> tuple[str, list[Any]]:
    """Return rows of the columns `SHARED` in the order of ids, as SQL and its parameters."""
    rows, parameters = [], []
    for message in sorted(messages, key=lambda message: message.id):
        text, given = _row(database, message)
        rows.append(text)
        parameters += given
    return ", ".join(rows), parameters


def _row(database: Database, message: NewMessage) -> tuple[str, list[Any]]:
    """Return the row of one message, as SQL and its parameters."""
    header = message.header
    dialect = database.dialect
    due, due_parameter = dialect.due(message.delay_ms, message.at_ms)
    expires = "NULL" if header.expires_ms is None else f"{due} + %s"
    times = f"{due}, {due}, {dialect.now}, {expires}"
    text = f"(%s, %s, %s, %s, %s, %s, %s, {times}, %s, %s, %s, 0, 0, '', '', NULL, '[]')"
    parameters: list[Any] = [database.alias, message.id, header.queue, header.key, message.body.decode()]
    parameters += [header.tag, header.trace_id, due_parameter, due_parameter]
    if header.expires_ms is not None:
        parameters += [due_parameter, header.expires_ms]
    parameters += [header.max_attempts, header.timeout_ms, header.at_most_once]
    return text, parameters


def change(database: Database, changes: Sql, found: Sql, returning: str) -> list[Row]:
    """See `Statements`."""
    of_found = database.dialect.found_in.format(column="r.id", pk="id", found="found")
    return database.rows(
        f"WITH found AS (SELECT r.id FROM {found.text})"
        f" UPDATE delayq_ready AS r SET {changes.text} WHERE {of_found} RETURNING {returning}",
        [*found.parameters, *changes.parameters],
    )


def change_given(database: Database, changes: str, given: Sql, where: str, returning: str) -> list[Row]:
    """See `Statements`."""
    found = database.joined(given, database.of_ids(where), database.dialect.lock)
    of_given = database.dialect.found_in.format(column="r.id", pk="pk", found="given")
    return database.rows(
        f"WITH given AS (SELECT given.*, r.id AS pk FROM {found.text})"
        f" UPDATE delayq_ready AS r SET {changes} FROM given WHERE {of_given} AND r.id = given.pk"
        f" RETURNING {returning}",
        found.parameters,
    )
