"""The ends of leases, and their renewal. Each proves its lease by id and token: who lost it changes no row.

A row that another transaction holds, which may be a renewal, the relay or a caller's cancel, is passed over rather than
waited for. Its lease may be as good as ever, so the answer for it is None: ask again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.db import transaction

from django_delayq.brokers.base import FATAL_CRASHES, Alarm, Settlement, Verb
from django_delayq.store.database import Database, marks
from django_delayq.store.moves import bury, end, storable

INTERRUPTED_LEASE_MS = 1_000
Lease = tuple[str, int]
"""The id of a message, and the token."""


@dataclass(frozen=True, slots=True)
class Held:
    """The row of a lease that was still held, locked for its settlement."""

    pk: int
    queue: str
    key: str
    crashes: int
    worker: str
    settlement: Settlement

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
    """End leases in one transaction."""
    with transaction.atomic(database.using):
        locked = _lock(database, settlements)
        held = {
            lease: row
            for lease, row in locked.items()
            if not (row.settlement.verb is Verb.INTERRUPT and row.worker.startswith("!"))
        }
        again: list[Alarm] = []
        by_verb: dict[Verb, list[Held]] = {}
        for row in held.values():
            by_verb.setdefault(row.settlement.verb, []).append(row)
        for verb, rows in by_verb.items():
            again += _MOVES[verb](database, rows)
    over = [row.alarm() for row in held.values()]
    leases = [(settlement.id, settlement.token) for settlement in settlements]
    passed_over = _passed_over(database, [lease for lease in leases if lease not in locked])
    # Of two ends of one lease the first counts.
    answers = [None if lease in passed_over else held.pop(lease, None) is not None for lease in leases]
    return Settled(answers, over, again)


def renew(database: Database, leases: Sequence[Lease], lease_ms: int) -> list[bool | None]:
    """Make leases end later."""
    if not leases:
        return []
    dialect = database.dialect
    renewed = database.rows(
        f"WITH held (message_id, token) AS (VALUES {marks(len(leases), '(%s, %s)')})"
        " , mine AS (SELECT r.id FROM held JOIN delayq_ready r ON r.alias = %s AND r.message_id = held.message_id"
        f" AND r.token = held.token{dialect.skip_locked})"
        f" UPDATE delayq_ready AS r SET lease_until = {dialect.now} + %s WHERE r.id IN (SELECT id FROM mine)"
        " RETURNING message_id, token",
        [*(value for lease in leases for value in lease), database.alias, lease_ms],
    )
    found = {(id, token) for id, token in renewed}
    passed_over = _passed_over(database, [lease for lease in leases if lease not in found])
    return [None if lease in passed_over else lease in found for lease in leases]


def _passed_over(database: Database, leases: Sequence[Lease]) -> set[Lease]:
    """Those of the leases that were not found unlocked which stand all the same."""
    if not leases:
        return set()
    rows = database.rows(
        f"WITH held (message_id, token) AS (VALUES {marks(len(leases), '(%s, %s)')}) SELECT r.message_id, r.token"
        " FROM held JOIN delayq_ready r ON r.alias = %s AND r.message_id = held.message_id AND r.token = held.token",
        [*(value for lease in leases for value in lease), database.alias],
    )
    return {(id, token) for id, token in rows}


def finish_here(database: Database, id: str, token: int) -> bool:
    """Finish one message in the caller's transaction. False where its lease was lost."""
    settlement = Settlement(id, token, Verb.FINISH, "", "")
    held = _lock(database, [settlement])
    end(database, [row.pk for row in held.values()], "finished")
    return bool(held)


def _lock(database: Database, settlements: Sequence[Settlement]) -> dict[Lease, Held]:
    """Lock the rows whose lease is still held, but for those that another transaction holds."""
    by_lease = {(settlement.id, settlement.token): settlement for settlement in reversed(settlements)}
    if not by_lease:
        return {}
    rows = database.rows(
        f"WITH held (message_id, token) AS (VALUES {marks(len(by_lease), '(%s, %s)')})"
        " SELECT r.id, r.message_id, r.token, r.queue, r.key, r.crashes, r.worker FROM held JOIN delayq_ready r"
        f" ON r.alias = %s AND r.message_id = held.message_id AND r.token = held.token{database.dialect.skip_locked}",
        [*(value for lease in by_lease for value in lease), database.alias],
    )
    return {
        (id, token): Held(pk, queue, key, crashes, worker, by_lease[id, token])
        for pk, id, token, queue, key, crashes, worker in rows
    }


def _finish(database: Database, rows: list[Held]) -> list[Alarm]:
    end(database, [row.pk for row in rows], "finished")
    return []


def _retry(database: Database, rows: list[Held]) -> list[Alarm]:
    return _wait_again(database, rows, failed=1)


def _snooze(database: Database, rows: list[Held]) -> list[Alarm]:
    return _wait_again(database, rows, failed=0)


def _wait_again(database: Database, rows: list[Held], failed: int) -> list[Alarm]:
    for row in rows:
        error = storable(row.settlement.error)
        database.changed(
            f"UPDATE delayq_ready SET due_at = {database.dialect.now_up} + %s, failures = failures + %s, crashes = 0,"
            " error = CASE WHEN %s = '' THEN error ELSE %s END, token = NULL, lease_until = NULL, worker = '',"
            " placed = %s WHERE id = %s",
            [row.settlement.delay_ms, failed, error, error, False, row.pk],
        )
    return [row.alarm(row.settlement.delay_ms) for row in rows]


def _release(database: Database, rows: list[Held]) -> list[Alarm]:
    database.changed(
        f"UPDATE delayq_ready SET token = NULL, lease_until = NULL, worker = '' WHERE id IN ({marks(len(rows))})",
        [row.pk for row in rows],
    )
    return [row.alarm() for row in rows]


def _interrupt(database: Database, rows: list[Held]) -> list[Alarm]:
    # Not free at once: a thread that can't be stopped gets this second to end. The mark says to count no crash.
    database.changed(
        f"UPDATE delayq_ready SET worker = '!' || worker, lease_until = {database.dialect.now} + {INTERRUPTED_LEASE_MS}"
        f" WHERE id IN ({marks(len(rows))})",
        [row.pk for row in rows],
    )
    return [row.alarm(INTERRUPTED_LEASE_MS) for row in rows]


def _crash(database: Database, rows: list[Held]) -> list[Alarm]:
    again = []
    for row in rows:
        crashes = row.crashes + 1
        error = storable(row.settlement.error)
        database.changed(
            "UPDATE delayq_ready SET crashes = %s, error = %s, token = NULL, lease_until = NULL, worker = ''"
            " WHERE id = %s",
            [crashes, error, row.pk],
        )
        if crashes >= FATAL_CRASHES:
            bury(database, row.pk, f"killed its worker {crashes} times: {error}")
        else:
            again.append(row.alarm())
    return again


def _bury(database: Database, rows: list[Held]) -> list[Alarm]:
    for row in rows:
        bury(database, row.pk, row.settlement.error, row.settlement.detail, int(row.settlement.failed))
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
