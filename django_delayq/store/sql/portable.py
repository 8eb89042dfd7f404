"""The statements of SQLite, some of which other databases share.

PostgreSQL, too, changes rows by one statement that returns what it wrote. MySQL and MariaDB, too, settle in a short
transaction, because they can't move rows in one statement. SQLite has one writer at a time, so there no row is ever
locked and to be skipped.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from django_delayq.brokers.base import LeaseId, NewMessage
from django_delayq.core.message import State
from django_delayq.core.transitions import INTERRUPT_MS, Transition
from django_delayq.store.database import Database, Row, Sql
from django_delayq.store.sql.dialects import Dialect
from django_delayq.store.sql.moves import TimedTransition, bury, finish, leases, wait_again
from django_delayq.store.sql.rows import NEW


class Inserted(NamedTuple):
    """A row that was made, and the time of its statement."""

    id: str
    pk: int
    due_ms: int
    now_ms: int


def insert(database: Database, messages: Sequence[NewMessage]) -> list[Inserted]:
    """See `Statements`."""
    values, parameters = values_of(database, messages)
    rows = database.rows(
        f"INSERT INTO delayq_ready ({NEW}) VALUES {values}"
        f" {database.dialect.unless_there} RETURNING message_id, id, due_at, sent_at{database.notice}",
        parameters,
    )
    return [Inserted(*row[:4]) for row in rows]


def values_of(database: Database, messages: Sequence[NewMessage]) -> tuple[str, list[Any]]:
    """Return rows of the columns `NEW` in the order of ids, as SQL and its parameters."""
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
    text = f"(%s, %s, %s, %s, %s, %s, %s, {times}, %s, %s, %s, 0, 0, '', '', NULL, '[]', %s)"
    parameters: list[Any] = [database.alias, message.id, header.queue, header.key, message.body.decode()]
    parameters += [header.tag, header.trace_id, due_parameter, due_parameter]
    if header.expires_ms is not None:
        parameters += [due_parameter, header.expires_ms]
    parameters += [header.max_attempts, header.timeout_ms, header.at_most_once, False]
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


class _Locked(NamedTuple):
    """A row whose lease still stood, locked."""

    transition: Transition
    is_interrupted: bool
    claimed_ms: int
    now_ms: int

    @property
    def pk(self) -> int:
        return int(self.transition.pk)

    @property
    def is_written(self) -> bool:
        """Return whether anything is written."""
        return not self.transition.is_repeated(interrupted=self.is_interrupted)

    @property
    def ended_ms(self) -> int:
        """Return when the attempt ended, never later than now: the worker's estimate of the clock may be ahead."""
        ended_ms = self.transition.ended_ms
        return self.now_ms if ended_ms is None else min(ended_ms, self.now_ms)

    @property
    def started_ms(self) -> int:
        """Return when the attempt started: at its claim, where the worker does not say."""
        started_ms = self.transition.started_ms
        return min(self.claimed_ms if started_ms is None else started_ms, self.ended_ms)


def apply(database: Database, transitions: Sequence[Transition]) -> dict[LeaseId, bool]:
    """See `Statements`."""
    return database.transaction(partial(_apply, database, transitions))


def finish_here(database: Database, pk: int, token: int, started_ms: int) -> bool:
    """See `Statements`."""
    dialect = database.dialect
    held = database.rows(
        f"SELECT {dialect.now} FROM delayq_ready r WHERE r.id = %s AND r.token = %s{dialect.lock}", [pk, token]
    )
    finish(database, [(pk, min(started_ms, now_ms), now_ms) for (now_ms,) in held])
    return bool(held)


def interrupted(dialect: Dialect) -> str:
    """Return what to set in a row whose attempt was interrupted by the stop of its worker."""
    return f"interrupted = (1 = 1), lease_until = {dialect.now} + {INTERRUPT_MS}"


def _apply(database: Database, transitions: Sequence[Transition]) -> dict[LeaseId, bool]:
    locked = _lock(database, transitions)
    by_state: dict[State, list[_Locked]] = {state: [] for state in State}
    for row in locked:
        if row.is_written:
            by_state[row.transition.state].append(row)
    finish(database, [(row.pk, row.started_ms, row.ended_ms) for row in by_state[State.FINISHED]])
    bury(database, [_ended(row) for row in by_state[State.ERROR]])
    wait_again(database, [row.transition for row in by_state[State.PENDING]])
    _interrupt(database, [row.pk for row in by_state[State.RUNNING]])
    return {(row.transition.id, row.transition.token): row.is_written for row in locked}


def _lock(database: Database, transitions: Sequence[Transition]) -> list[_Locked]:
    """Lock the rows whose lease is still held, except those that another transaction has locked."""
    by_lease = {(one.id, one.token): one for one in transitions}
    held = leases(database, transitions, database.dialect.skip_locked)
    rows = database.rows(
        f"SELECT r.message_id, r.token, r.interrupted, r.started_at, {database.dialect.now} FROM {held.text}",
        held.parameters,
    )
    return [
        _Locked(by_lease[id, token], bool(interrupted), claimed_ms, now_ms)
        for id, token, interrupted, claimed_ms, now_ms in rows
    ]


def _ended(row: _Locked) -> TimedTransition:
    return TimedTransition(row.transition, None if row.transition.started_ms is None else row.started_ms, row.ended_ms)


def _interrupt(database: Database, pks: Sequence[int]) -> None:
    if pks:
        of_pks = database.among("id", pks)
        database.changed(
            f"UPDATE delayq_ready SET {interrupted(database.dialect)} WHERE {of_pks.text}", of_pks.parameters
        )
