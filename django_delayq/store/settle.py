"""End leases, and renew them. Each call proves its lease by id and token: a worker that lost it changes no row.

A row that another transaction holds, which may be a renewal or a caller's cancel, is passed over rather than
waited for. Its lease may still be good, so the answer for it is None: ask again.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from django_delayq.brokers.base import Alarm, Claimed, LeaseId
from django_delayq.core.message import State
from django_delayq.core.transitions import INTERRUPT_MS, Transition
from django_delayq.store.database import Database, Sql
from django_delayq.store.sql.moves import leases
from django_delayq.store.sql.statements import statements
from django_delayq.store.window import SOON_MS


@dataclass(slots=True)
class Settled:
    """The answer for each lease, alarms to forget, and alarms to put."""

    answers: list[bool | None]
    drop: list[Alarm]
    rearm: list[Alarm]


def settle(database: Database, transitions: Sequence[Transition]) -> Settled:
    """Write transitions. For those that the handler's own transaction has written, only the alarm is left to forget."""
    # Of two ends of one lease the first counts.
    by_lease = {(one.id, one.token): one for one in reversed(transitions) if not one.is_written}
    found = statements(database).apply(database, list(by_lease.values())) if by_lease else {}
    others = [one for lease, one in by_lease.items() if lease not in found]
    passed_over = _standing(database, leases(database, others)) if others else set()
    written = {lease: by_lease[lease] for lease, is_written in found.items() if is_written}
    drop = [_alarm(one) for one in (*written.values(), *(one for one in transitions if one.is_written))]
    stay = [_alarm(one, _wait_ms(one)) for one in written.values() if one.state in (State.PENDING, State.RUNNING)]
    rearm = [alarm for alarm in stay if alarm.wait_ms <= SOON_MS]  # a pass schedules the others in time
    return Settled([_answer(one, written, passed_over) for one in transitions], drop, rearm)


def _alarm(one: Transition, wait_ms: int = 0) -> Alarm:
    return Alarm(one.queue, one.key, one.pk, wait_ms)


def _wait_ms(one: Transition) -> int:
    """Return after how many ms the row is due again, or its interrupted lease ends."""
    return INTERRUPT_MS if one.state is State.RUNNING else one.delay_ms or 0


def _answer(one: Transition, written: dict[LeaseId, Transition], passed_over: Collection[LeaseId]) -> bool | None:
    lease = one.id, one.token
    if one.is_written:
        return True
    if lease in passed_over:
        return None
    return written.pop(lease, None) is not None


def renew(database: Database, held: Sequence[Claimed], lease_ms: int) -> list[bool | None]:
    """Make leases end later. Returns whether each was still held; None where another transaction has its row."""
    if not held:
        return []
    changes = Sql(f"lease_until = {database.dialect.now} + %s", [lease_ms])
    unlocked = leases(database, held, database.dialect.skip_locked)
    found = statements(database).change(database, changes, unlocked, "message_id, token")
    renewed = {(id, token) for id, token in found}
    others = [one for one in held if (one.id, one.token) not in renewed]
    passed_over = _standing(database, leases(database, others)) if others else set()
    asked = [(one.id, one.token) for one in held]
    return [None if lease in passed_over else lease in renewed for lease in asked]


def _standing(database: Database, found: Sql) -> set[LeaseId]:
    """Return the leases that still stand. Their rows are locked by other transactions, and are read without a lock."""
    rows = database.rows(f"SELECT r.message_id, r.token FROM {found.text}", found.parameters)
    return {(id, token) for id, token in rows}


def is_finished(database: Database, pk: int) -> bool:
    """Return whether the row has finished or was cancelled, for a caller whose COMMIT got no answer."""
    return bool(database.rows("SELECT 1 FROM delayq_finish WHERE id = %s", [pk]))
