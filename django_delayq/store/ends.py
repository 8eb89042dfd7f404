"""The ends of leases in a short transaction: rows are locked, what becomes of them is worked out here, and written."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from django_delayq.brokers.base import FATAL_CRASHES, Settlement, Verb
from django_delayq.history import Ended, PastAttempt, add
from django_delayq.store.database import Database, marks
from django_delayq.store.dialects import Dialect
from django_delayq.store.moves import Again, Burial, Ran, bury, finish, storable, wait_again
from django_delayq.store.rows import OF_HELD, UNLEASED, End

INTERRUPTED_LEASE_MS = 1_000
"""Not free at once: a thread that can't be stopped gets this second to end. A mark says to count no crash."""

OUTCOMES = {Verb.RETRY: Ended.FAILED, Verb.SNOOZE: Ended.SNOOZED, Verb.CRASH: Ended.CRASHED}
"""The moves that leave an attempt in the history of a row that stays."""


@dataclass(frozen=True, slots=True)
class Held:
    """The row of a lease that was still held, locked for its settlement."""

    settlement: Settlement
    pk: int
    queue: str
    key: str
    failures: int
    crashes: int
    worker: str
    claimed_ms: int
    history: str
    now_ms: int

    @property
    def ended_ms(self) -> int:
        """When the attempt ended. The worker's idea of the clock may be ahead, never what is kept."""
        ended_ms = self.settlement.ended_ms
        return self.now_ms if ended_ms is None else min(ended_ms, self.now_ms)

    @property
    def started_ms(self) -> int:
        """When the attempt started: at its claim, where the worker does not say."""
        started_ms = self.settlement.started_ms
        return min(self.claimed_ms if started_ms is None else started_ms, self.ended_ms)

    @property
    def move(self) -> Verb | None:
        """What is done: as asked, but for the third crash, which buries, and a second interruption, which is none."""
        verb = self.settlement.verb
        if verb is Verb.CRASH and self.crashes + 1 >= FATAL_CRASHES:
            return Verb.BURY
        return None if verb is Verb.INTERRUPT and self.worker.startswith("!") else verb

    @property
    def past(self) -> str:
        """The row's history with this attempt."""
        one = self.settlement
        attempt = self.failures + 1, self.started_ms, self.ended_ms, self.worker.removeprefix("!"), OUTCOMES[one.verb]
        return add(self.history, PastAttempt(*attempt, storable(one.error), storable(one.detail)))


def end(database: Database, settlements: Sequence[Settlement]) -> list[End]:
    """See `Statements`."""
    return database.transaction(partial(_end, database, settlements))


def finish_here(database: Database, pk: int, token: int, started_ms: int) -> bool:
    """See `Statements`."""
    dialect = database.dialect
    held = database.rows(
        f"SELECT {dialect.now} FROM delayq_ready r WHERE r.id = %s AND r.token = %s{dialect.lock}", [pk, token]
    )
    finish(database, [Ran(pk, min(started_ms, now_ms), now_ms) for (now_ms,) in held])
    return bool(held)


def _end(database: Database, settlements: Sequence[Settlement]) -> list[End]:
    rows = _lock(database, settlements)
    by_move: dict[Verb | None, list[Held]] = {verb: [] for verb in (None, *Verb)}
    for row in rows:
        by_move[row.move].append(row)
    finish(database, [Ran(row.pk, row.started_ms, row.ended_ms) for row in by_move[Verb.FINISH]])
    bury(database, [_burial(row) for row in by_move[Verb.BURY]])
    wait_again(database, [_again(row) for move in OUTCOMES for row in by_move[move]])
    put_off = [row for row in by_move[Verb.RELEASE] if row.settlement.delay_ms]
    wait_again(database, [_put_off(row) for row in put_off])
    _set(database, UNLEASED, [row for row in by_move[Verb.RELEASE] if not row.settlement.delay_ms])
    _set(database, interrupted(database.dialect), by_move[Verb.INTERRUPT])
    return [End(row.settlement.id, row.settlement.token, row.pk, row.queue, row.key, row.move) for row in rows]


def _lock(database: Database, settlements: Sequence[Settlement]) -> list[Held]:
    """Lock the rows whose lease is still held, but for those that another transaction holds."""
    by_lease = {(settlement.id, settlement.token): settlement for settlement in settlements}
    held = database.given("held", {"message_id": str, "token": int}, list(by_lease))
    rows = database.rows(
        'SELECT r.message_id, r.token, r.id, r.queue, r."key", r.failures, r.crashes, r.worker, r.started_at,'
        f" r.history, {database.dialect.now} FROM {held.text} {OF_HELD}{database.dialect.skip_locked}",
        [*held.parameters, database.alias],
    )
    return [Held(by_lease[id, token], *row) for id, token, *row in rows]


def _burial(row: Held) -> Burial:
    one = row.settlement
    if one.verb is Verb.CRASH:
        cause = f"killed its worker {row.crashes + 1} times: {one.error}"
        return Burial(row.pk, row.started_ms, row.ended_ms, cause, more_crashes=1)
    started_ms = None if one.started_ms is None else row.started_ms
    return Burial(row.pk, started_ms, row.ended_ms, one.error, one.detail, one.fingerprint, int(one.failed))


def _again(row: Held) -> Again:
    one = row.settlement
    wait_ms, new_crashes = (None, row.crashes + 1) if one.verb is Verb.CRASH else (one.delay_ms, 0)
    return Again(row.pk, wait_ms, int(one.verb is Verb.RETRY), new_crashes, storable(one.error), row.past)


def _put_off(row: Held) -> Again:
    """It was not started: nothing counts, but it is due later."""
    return Again(row.pk, row.settlement.delay_ms, 0, row.crashes, "", row.history)


def interrupted(dialect: Dialect) -> str:
    """What is set of a row whose attempt the stop of its worker interrupted."""
    return f"worker = {dialect.interrupted}, lease_until = {dialect.now} + {INTERRUPTED_LEASE_MS}"


def _set(database: Database, changes: str, rows: Sequence[Held]) -> None:
    if rows:
        pks = [row.pk for row in rows]
        database.changed(f"UPDATE delayq_ready SET {changes} WHERE id IN ({marks(len(pks))})", pks)
