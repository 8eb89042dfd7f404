"""The ends of leases, and their renewal. Each proves its lease by id and token: who lost it changes no row.

A row that another transaction holds, which may be a renewal, the relay or a caller's cancel, is passed over rather than
waited for. Its lease may be as good as ever, so the answer for it is None: ask again.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from django_delayq.brokers.base import FATAL_CRASHES, Alarm, Settlement, Verb
from django_delayq.history import Ended, PastAttempt, add
from django_delayq.store.database import Database, Sql, marks
from django_delayq.store.moves import Burial, Ran, bury, finish, storable
from django_delayq.store.rows import UNLEASED
from django_delayq.store.statements import statements

INTERRUPTED_LEASE_MS = 1_000
Lease = tuple[str, int]
"""The id of a message, and the token."""


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

    def history_with(self, outcome: Ended) -> str:
        """The row's history with this attempt."""
        error, traceback = storable(self.settlement.error), storable(self.settlement.detail)
        attempt = self.failures + 1, self.started_ms, self.ended_ms, self.worker.removeprefix("!"), outcome
        return add(self.history, PastAttempt(*attempt, error, traceback))

    def alarm(self, wait_ms: int = 0) -> Alarm:
        """An alarm for the row."""
        return Alarm(self.queue, self.key, str(self.pk), wait_ms)


@dataclass(slots=True)
class Settled:
    """What is answered for each lease, alarms to forget, and alarms to put."""

    answers: list[bool | None]
    over: list[Alarm]
    again: list[Alarm]


def settle(database: Database, settlements: Sequence[Settlement]) -> Settled:
    """End leases in one transaction. Of those that the handler's own has ended, only the alarm is left."""
    finished = [Alarm(one.queue, one.key, one.finished_pk) for one in settlements if one.finished_pk]
    rest = [one for one in settlements if not one.finished_pk]
    settled = _settle_rest(database, rest) if rest else Settled([], [], [])
    answers = iter(settled.answers)
    settled.answers = [True if one.finished_pk else next(answers) for one in settlements]
    settled.over += finished
    return settled


def _settle_rest(database: Database, settlements: Sequence[Settlement]) -> Settled:
    locked, held, again = database.transaction(partial(_settle, database, settlements))
    over = [row.alarm() for row in held.values()]
    leases = [(settlement.id, settlement.token) for settlement in settlements]
    passed_over = _passed_over(database, [lease for lease in leases if lease not in locked])
    # Of two ends of one lease the first counts.
    answers = [None if lease in passed_over else held.pop(lease, None) is not None for lease in leases]
    return Settled(answers, over, again)


def _settle(database: Database, settlements: Sequence[Settlement]) -> tuple[set[Lease], dict[Lease, Held], list[Alarm]]:
    """The leases whose rows could be locked, those ended, and alarms to put."""
    locked = _lock(database, settlements)
    held = {
        lease: row
        for lease, row in locked.items()
        if not (row.settlement.verb is Verb.INTERRUPT and row.worker.startswith("!"))
    }
    by_verb: dict[Verb, list[Held]] = {}
    for row in held.values():
        by_verb.setdefault(row.settlement.verb, []).append(row)
    again = [alarm for verb, rows in by_verb.items() for alarm in _MOVES[verb](database, rows)]
    return set(locked), held, again


def renew(database: Database, leases: Sequence[Lease], lease_ms: int) -> list[bool | None]:
    """Make leases end later."""
    if not leases:
        return []
    changes = Sql(f"lease_until = {database.dialect.now} + %s", [lease_ms])
    renewed = statements(database).change_unlocked(database, changes, _rows_of(database, leases), "message_id, token")
    found = {(id, token) for id, token in renewed}
    passed_over = _passed_over(database, [lease for lease in leases if lease not in found])
    return [None if lease in passed_over else lease in found for lease in leases]


def _passed_over(database: Database, leases: Sequence[Lease]) -> set[Lease]:
    """Those of the leases that were not found unlocked which stand all the same."""
    if not leases:
        return set()
    found = _rows_of(database, leases)
    rows = database.rows(f"SELECT r.message_id, r.token FROM {found.text}", found.parameters)
    return {(id, token) for id, token in rows}


def _rows_of(database: Database, leases: Collection[Lease]) -> Sql:
    """The rows `r` of leases, for FROM."""
    held = database.given("held", {"message_id": str, "token": int}, list(leases))
    return Sql(
        f"{held.text} JOIN delayq_ready r ON r.alias = %s AND r.message_id = held.message_id AND r.token = held.token",
        [*held.parameters, database.alias],
    )


def _lock(database: Database, settlements: Sequence[Settlement]) -> dict[Lease, Held]:
    """Lock the rows whose lease is still held, but for those that another transaction holds."""
    by_lease = {(settlement.id, settlement.token): settlement for settlement in reversed(settlements)}
    if not by_lease:
        return {}
    found = _rows_of(database, by_lease)
    rows = database.rows(
        "SELECT r.message_id, r.token, r.id, r.queue, r.key, r.failures, r.crashes, r.worker, r.started_at, r.history,"
        f" {database.dialect.now} FROM {found.text}{database.dialect.skip_locked}",
        found.parameters,
    )
    return {(id, token): Held(by_lease[id, token], *row) for id, token, *row in rows}


def _finish(database: Database, rows: list[Held]) -> list[Alarm]:
    finish(database, [Ran(row.pk, row.started_ms, row.ended_ms) for row in rows])
    return []


def _retry(database: Database, rows: list[Held]) -> list[Alarm]:
    return _wait_again(database, rows, Ended.FAILED)


def _snooze(database: Database, rows: list[Held]) -> list[Alarm]:
    return _wait_again(database, rows, Ended.SNOOZED)


def _wait_again(database: Database, rows: list[Held], outcome: Ended) -> list[Alarm]:
    for row in rows:
        error = storable(row.settlement.error)
        database.changed(
            f"UPDATE delayq_ready SET due_at = {database.dialect.now_up} + %s, failures = failures + %s, crashes = 0,"
            f" error = CASE WHEN %s = '' THEN error ELSE %s END, {UNLEASED}, history = %s, placed = %s WHERE id = %s",
            [
                row.settlement.delay_ms,
                int(outcome is Ended.FAILED),
                error,
                error,
                row.history_with(outcome),
                False,
                row.pk,
            ],
        )
    return [row.alarm(row.settlement.delay_ms) for row in rows]


def _release(database: Database, rows: list[Held]) -> list[Alarm]:
    database.changed(
        f"UPDATE delayq_ready SET {UNLEASED} WHERE id IN ({marks(len(rows))})",
        [row.pk for row in rows],
    )
    return [row.alarm() for row in rows]


def _interrupt(database: Database, rows: list[Held]) -> list[Alarm]:
    # Not free at once: a thread that can't be stopped gets this second to end. The mark says to count no crash.
    dialect = database.dialect
    database.changed(
        f"UPDATE delayq_ready SET worker = {dialect.interrupted}, lease_until = {dialect.now} + %s"
        f" WHERE id IN ({marks(len(rows))})",
        [INTERRUPTED_LEASE_MS, *[row.pk for row in rows]],
    )
    return [row.alarm(INTERRUPTED_LEASE_MS) for row in rows]


def _crash(database: Database, rows: list[Held]) -> list[Alarm]:
    again = []
    for row in rows:
        crashes, error = row.crashes + 1, storable(row.settlement.error)
        if crashes >= FATAL_CRASHES:
            text = f"killed its worker {crashes} times: {error}"
            bury(database, row.pk, Burial(text, row.started_ms, row.ended_ms, crashes=1))
            continue
        database.changed(
            f"UPDATE delayq_ready SET crashes = %s, error = %s, {UNLEASED}, history = %s WHERE id = %s",
            [crashes, error, row.history_with(Ended.CRASHED), row.pk],
        )
        again.append(row.alarm())
    return again


def _bury(database: Database, rows: list[Held]) -> list[Alarm]:
    for row in rows:
        one = row.settlement
        started_ms = None if one.started_ms is None else row.started_ms
        burial = Burial(one.error, started_ms, row.ended_ms, one.detail, one.fingerprint, int(one.failed))
        bury(database, row.pk, burial)
    return []


_MOVES: dict[Verb, Callable[[Database, list[Held]], list[Alarm]]] = {
    Verb.FINISH: _finish,
    Verb.RETRY: _retry,
    Verb.SNOOZE: _snooze,
    Verb.RELEASE: _release,
    Verb.INTERRUPT: _interrupt,
    Verb.CRASH: _crash,
    Verb.BURY: _bury,
}
