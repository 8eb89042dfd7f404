"""End a batch of leases step by step, on MySQL, MariaDB and SQLite, which can't move rows by one statement.

`apply` is a short transaction: it locks the rows whose leases still stand, and then runs a few statements for each new
state. Those that finish a batch are in `moves.finish`: an INSERT into `delayq_finish` that selects the rows, and a
DELETE from `delayq_ready`.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from django_delayq.brokers.base import LeaseId
from django_delayq.core.message import State
from django_delayq.core.transitions import Transition
from django_delayq.store.database import Database
from django_delayq.store.sql.moves import TimedTransition, bury, finish, interrupted, leases, wait_again


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
        """Return whether the transition changes the row: it does not if the lease is interrupted already."""
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
