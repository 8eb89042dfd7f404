"""Move rows from one table to another, within one transaction, so that each pk is always in one of them.

`Stepwise` is for MySQL, MariaDB and SQLite, which can't move rows by one statement. A batch of leases ends in a short
transaction: it locks the rows whose leases still stand, and then runs a few statements for each new state. `finish`
has those of finished messages: an INSERT into `delayq_finish` that selects the rows, and a DELETE from `delayq_ready`.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from django_delayq.brokers.base import Claimed, LeaseId, pages
from django_delayq.core.message import State
from django_delayq.core.requests import CancelRequest
from django_delayq.core.transitions import INTERRUPT_MS, Transition
from django_delayq.store.sql.dialect import (
    CLEAR_LEASE,
    JOIN_LEASES,
    LEASES,
    SHARED,
    Columns,
    Dialect,
    Executor,
    LongText,
    Rows,
    Sql,
    shared_with,
)

PAGE = 50
"""How many rows one statement takes with their errors and histories: 64 KiB each, and MySQL takes 16 MiB in all."""


_FINISHED: Columns = {"pk": int, "started_ms": int, "ended_ms": int}
_BURIED: Columns = {
    **_FINISHED,
    "new_failures": int,
    "new_crashes": int,
    "cause": LongText,
    "detail": LongText,
    "fingerprint": str,
}
_CANCELLED: Columns = {**_FINISHED, "cause": LongText}
_AGAIN = {
    "pk": int,
    "wait_ms": int,
    "at_ms": int,
    "new_failures": int,
    "new_crashes": int,
    "cause": LongText,
    "past": LongText,
}

FINISHED = f"id, {shared_with(started_at='started_ms')}, 'finished', ended_ms"
"""The values for `delayq_finish`, from a row joined with a values table of the columns `_FINISHED`."""

CANCELLED = f"id, {shared_with(error='cause', started_at='started_ms')}, 'cancelled', ended_ms"
"""The values for `delayq_finish` of a message that was cancelled while it ran, from a row joined like that of `BURIED`.
"""

BURIED = (
    "id, "
    + shared_with(failures="new_failures", crashes="new_crashes", error="cause", started_at="started_ms")
    + ", detail, fingerprint, ended_ms"
)
"""The values for `delayq_error`, from a row joined with a values table of the columns `_BURIED`."""

AGAIN = (
    "due_at = CASE WHEN held.at_ms > {now_up} THEN held.at_ms ELSE coalesce({now_up} + held.wait_ms, r.due_at) END,"
    " failures = held.new_failures, crashes = held.new_crashes, error = coalesce(held.cause, r.error),"
    f" history = coalesce(held.past, r.history), {CLEAR_LEASE}"
)
"""The changes of a row joined with the columns `_AGAIN`."""


def request_of(by: str | None, at_ms: int | None) -> CancelRequest | None:
    """Return the request of a row's columns `cancel_by` and `cancel_at`."""
    return None if at_ms is None else CancelRequest(by or "", at_ms)


class TimedTransition(NamedTuple):
    """A transition of a row that the caller's transaction has locked, and when its attempt started and ended.

    `started_ms` is None where no handler started. Neither time is ahead of the database's clock.
    """

    transition: Transition
    started_ms: int | None
    ended_ms: int


def leases(database: Executor, leased: Sequence[Claimed | Transition], lock: str = "") -> Sql:
    """Return SQL for FROM: the rows `r` whose lease is one of `leased`. A lease without a pk has no row."""
    held = database.dialect.values_table("held", LEASES, [(int(one.pk or 0), one.id, one.token) for one in leased])
    return database.dialect.joined(held, Sql(JOIN_LEASES), lock)


def finish(database: Executor, rows: Sequence[tuple[int, int, int]]) -> None:
    """Move rows from ready to finish. Each of `rows` has a pk, and when its attempt started and ended."""
    if rows:
        held = _of_pks(database, _FINISHED, rows)
        database.changed(
            f"INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at) SELECT {FINISHED} FROM {held.text}",
            held.parameters,
        )
        delete(database, [pk for pk, _, _ in rows])


def cancel(database: Executor, pks: Sequence[int], why: str = "") -> None:
    """Move rows from ready to finish, with the outcome cancelled. The caller's transaction has locked them.

    `why` takes the place of the last error, which the history has too.
    """
    if pks:
        of_pks = database.dialect.among("id", pks)
        columns, parameters = (shared_with(error="%s"), [why]) if why else (SHARED, [])
        database.changed(
            f"INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at)"
            f" SELECT id, {columns}, %s, {database.dialect.now} FROM delayq_ready WHERE {of_pks.text}",
            [*parameters, "cancelled", *of_pks.parameters],
        )
        delete(database, pks)


def cancel_running(database: Executor, ended: Sequence[TimedTransition]) -> None:
    """Move rows of messages that ran from ready to finish, with the outcome cancelled, and why in their errors."""
    for page in pages(ended, PAGE):
        rows = [(int(one.pk), started_ms, ended_ms, one.error or "") for one, started_ms, ended_ms in page]
        held = _of_pks(database, _CANCELLED, rows)
        database.changed(
            f"INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at) SELECT {CANCELLED} FROM {held.text}",
            held.parameters,
        )
        delete(database, [pk for pk, *_ in rows])


def bury(database: Executor, ended: Sequence[TimedTransition]) -> None:
    """Move rows from ready to error."""
    for page in pages(ended, PAGE):
        rows = [
            (int(one.pk), started_ms, ended_ms, one.failures, one.crashes, one.error or "", one.detail, one.fingerprint)
            for one, started_ms, ended_ms in page
        ]
        held = _of_pks(database, _BURIED, rows)
        database.changed(
            f"INSERT INTO delayq_error (id, {SHARED}, detail, fingerprint, ended_at) SELECT {BURIED} FROM {held.text}",
            held.parameters,
        )
        delete(database, [pk for pk, *_ in rows])


def wait_again(database: Executor, transitions: Sequence[Transition]) -> None:
    """End the leases of rows that the caller's transaction has locked: they wait again."""
    for page in pages(transitions, PAGE):
        rows = [
            (int(one.pk), one.delay_ms, one.at_ms, one.failures, one.crashes, one.error, one.history) for one in page
        ]
        held = database.dialect.values_table("held", _AGAIN, rows)
        changes = AGAIN.format(now_up=database.dialect.now_up)
        database.changed(
            database.dialect.update_held.format(table="delayq_ready", changes=changes, held=held.text), held.parameters
        )


def interrupted(now: str) -> str:
    """Return the changes of a row whose worker stops while it runs: its lease ends soon, and no crash is counted."""
    return f"interrupted = (1 = 1), lease_until = {now} + {INTERRUPT_MS}"


def count(database: Executor, name: str, number: int) -> None:
    """Add `number` to the tally of messages that were removed for good, under `name`."""
    if number:
        database.changed(
            f"INSERT INTO delayq_tally (alias, name, count) VALUES (%s, %s, %s) {database.dialect.counted}",
            [database.alias, name, number],
        )


def _of_pks(database: Executor, columns: Columns, rows: Rows) -> Sql:
    """Return SQL for FROM: a table `held` with these rows, joined with the rows `r` of their pks."""
    return database.dialect.joined(database.dialect.values_table("held", columns, rows), Sql("r.id = held.pk"))


def delete(database: Executor, pks: Sequence[int], table: str = "delayq_ready") -> None:
    """Delete rows of a table, without counting them."""
    if pks:
        of_pks = database.dialect.among("id", pks)
        database.changed(f"DELETE FROM {table} WHERE {of_pks.text}", of_pks.parameters)


class _Locked(NamedTuple):
    """A row whose lease still stood, and which this transaction has locked."""

    transition: Transition
    is_interrupted: bool
    cancel_request: CancelRequest | None
    claimed_ms: int
    now_ms: int

    @property
    def pk(self) -> int:
        return int(self.transition.pk)

    @property
    def is_written(self) -> bool:
        """Return whether the transition changes the row.

        It does not if the lease is interrupted already, or if the message is to be cancelled instead.
        """
        return not self.transition.is_repeated(interrupted=self.is_interrupted) and not self.is_cancelled

    @property
    def is_cancelled(self) -> bool:
        """Return whether the message is to be cancelled instead."""
        return self.cancel_request is not None and self.transition.yields_to_cancel

    @property
    def answer(self) -> bool | CancelRequest:
        """Return the answer about the lease, as `Dialect.apply` gives it."""
        return self.cancel_request if self.cancel_request is not None and self.is_cancelled else self.is_written

    @property
    def ended_ms(self) -> int:
        """Return when the attempt ended, never before it was claimed or later than now.

        The worker's estimate of the clock may be behind or ahead.
        """
        ended_ms = self.transition.ended_ms
        return self.now_ms if ended_ms is None else min(max(ended_ms, self.claimed_ms), self.now_ms)

    @property
    def started_ms(self) -> int:
        """Return when the attempt started; when it was claimed, if the worker does not say."""
        started_ms = self.transition.started_ms
        return min(self.claimed_ms if started_ms is None else started_ms, self.ended_ms)


class Stepwise(Dialect):
    """A dialect in which leases end step by step, by several statements."""

    def apply(self, database: Executor, transitions: Sequence[Transition]) -> dict[LeaseId, bool | CancelRequest]:
        return database.transaction(partial(_apply, database, transitions))

    def finish_here(self, database: Executor, pk: int, token: int, started_ms: int) -> bool:
        held = database.rows(
            f"SELECT {self.now} FROM delayq_ready r WHERE r.id = %s AND r.token = %s AND r.again IS NULL{self.lock}",
            [pk, token],
        )
        finish(database, [(pk, min(started_ms, now_ms), now_ms) for (now_ms,) in held])
        return bool(held)


def _apply(database: Executor, transitions: Sequence[Transition]) -> dict[LeaseId, bool | CancelRequest]:
    locked = _lock(database, transitions)
    by_state: dict[State, list[_Locked]] = {state: [] for state in State}
    for row in locked:
        if row.is_written:
            by_state[row.transition.state].append(row)
    finish(database, [(row.pk, row.started_ms, row.ended_ms) for row in by_state[State.FINISHED]])
    bury(database, [_ended(row) for row in by_state[State.FAILED]])
    cancel_running(database, [_ended(row) for row in by_state[State.CANCELLED]])
    wait_again(database, [row.transition for row in by_state[State.PENDING]])
    _interrupt(database, [row.pk for row in by_state[State.RUNNING]])
    return {(row.transition.id, row.transition.token): row.answer for row in locked}


def _lock(database: Executor, transitions: Sequence[Transition]) -> list[_Locked]:
    """Lock the rows whose lease is still held, except those that another transaction has locked.

    Rows whose runs end, and for whose end a send was kept, are left out, unless they are to be cancelled instead.
    """
    by_lease = {(one.id, one.token): one for one in transitions}
    held = leases(database, transitions, database.dialect.skip_locked)
    rows = database.rows(
        "SELECT r.message_id, r.token, r.interrupted, r.cancel_by, r.cancel_at, r.started_at,"
        f" {database.dialect.now}, r.again IS NOT NULL FROM {held.text}",
        held.parameters,
    )
    return [
        row
        for id, token, interrupted, by, at_ms, claimed_ms, now_ms, is_kept in rows
        for row in [_Locked(by_lease[id, token], bool(interrupted), request_of(by, at_ms), claimed_ms, now_ms)]
        if not is_kept or row.transition.state is State.RUNNING or row.is_cancelled
    ]


def _ended(row: _Locked) -> TimedTransition:
    return TimedTransition(row.transition, None if row.transition.started_ms is None else row.started_ms, row.ended_ms)


def _interrupt(database: Executor, pks: Sequence[int]) -> None:
    if pks:
        of_pks = database.dialect.among("id", pks)
        database.changed(
            f"UPDATE delayq_ready SET {interrupted(database.dialect.now)} WHERE {of_pks.text}", of_pks.parameters
        )
