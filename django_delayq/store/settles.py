"""The ends of leases, and their renewal. Each proves its lease by id and token: who lost it changes no row.

A row that another transaction holds, which may be a renewal, the relay or a caller's cancel, is passed over rather than
waited for. Its lease may be as good as ever, so the answer for it is None: ask again.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from django_delayq.brokers.base import Alarm, LeaseId, Settlement, Verb
from django_delayq.store.database import Database, Sql
from django_delayq.store.ends import INTERRUPTED_LEASE_MS
from django_delayq.store.rows import OF_HELD, End
from django_delayq.store.statements import statements


@dataclass(slots=True)
class Settled:
    """What is answered for each lease, alarms to forget, and alarms to put."""

    answers: list[bool | None]
    over: list[Alarm]
    again: list[Alarm]


def settle(database: Database, settlements: Sequence[Settlement]) -> Settled:
    """End leases. Of those that the handler's own transaction has ended, only the alarm is left."""
    # Of two ends of one lease the first counts.
    by_lease = {(one.id, one.token): one for one in reversed(settlements) if not one.finished_pk}
    ends = statements(database).end(database, list(by_lease.values())) if by_lease else []
    locked = {(end.id, end.token) for end in ends}
    passed_over = _passed_over(database, [lease for lease in by_lease if lease not in locked])
    ended = {(end.id, end.token): end for end in ends if end.move}
    over = [Alarm(end.queue, end.key, str(end.pk)) for end in ended.values()]
    over += [Alarm(one.queue, one.key, one.finished_pk) for one in settlements if one.finished_pk]
    again = [alarm for lease, end in ended.items() if (alarm := _alarm_after(end, by_lease[lease]))]
    return Settled([_answer(one, ended, passed_over) for one in settlements], over, again)


def _alarm_after(end: End, settlement: Settlement) -> Alarm | None:
    """The alarm to put for a row that stays."""
    if end.move in (Verb.FINISH, Verb.BURY):
        return None
    waits_ms: dict[Verb | None, int] = {
        Verb.INTERRUPT: INTERRUPTED_LEASE_MS,
        Verb.RETRY: settlement.delay_ms,
        Verb.SNOOZE: settlement.delay_ms,
        Verb.RELEASE: settlement.delay_ms,
    }
    return Alarm(end.queue, end.key, str(end.pk), waits_ms.get(end.move, 0))


def _answer(one: Settlement, ended: dict[LeaseId, End], passed_over: Collection[LeaseId]) -> bool | None:
    lease = one.id, one.token
    if one.finished_pk:
        return True
    if lease in passed_over:
        return None
    return ended.pop(lease, None) is not None


def renew(database: Database, leases: Sequence[LeaseId], lease_ms: int) -> list[bool | None]:
    """Make leases end later."""
    if not leases:
        return []
    changes = Sql(f"lease_until = {database.dialect.now} + %s", [lease_ms])
    renewed = statements(database).change_unlocked(database, changes, _rows_of(database, leases), "message_id, token")
    found = {(id, token) for id, token in renewed}
    passed_over = _passed_over(database, [lease for lease in leases if lease not in found])
    return [None if lease in passed_over else lease in found for lease in leases]


def _passed_over(database: Database, leases: Sequence[LeaseId]) -> set[LeaseId]:
    """Those of the leases that were not found unlocked which stand all the same."""
    if not leases:
        return set()
    found = _rows_of(database, leases)
    rows = database.rows(f"SELECT r.message_id, r.token FROM {found.text}", found.parameters)
    return {(id, token) for id, token in rows}


def _rows_of(database: Database, leases: Sequence[LeaseId]) -> Sql:
    """The rows `r` of leases, for FROM."""
    held = database.given("held", {"message_id": str, "token": int}, leases)
    return Sql(f"{held.text} {OF_HELD}", [*held.parameters, database.alias])
