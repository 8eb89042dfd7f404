"""Claim rows: the only way to get the right to run. An alarm says where to look; the row decides."""

import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from time import monotonic

from django_delayq.brokers.base import Alarm, BuriedInfo, Claimed, ClaimRequest, pages
from django_delayq.core.transitions import SUSPECT_CRASHES
from django_delayq.store import rules, tags
from django_delayq.store.alarms import SOON_MS
from django_delayq.store.database import Database
from django_delayq.store.queries import header_of
from django_delayq.store.settle import reclaim
from django_delayq.store.sql.dialect import CLAIMED, CLEAR_LEASE, CRASHED, SUSPECT, Row, Sql, checked

PK_DIGITS = 19
"""The digits of the largest primary key. All keys that are shorter fit into a column."""
LEAST_LOCKED_WAIT_MS, MOST_LOCKED_WAIT_MS = 20, 1_000


def is_pk(text: str) -> bool:
    """Return whether a text can be a primary key. Anyone who can write to the timer's server may schedule any text."""
    return text.isdecimal() and text.isascii() and len(text) < PK_DIGITS


@dataclass(slots=True)
class ClaimedRows:
    """The result of a claim of rows: `messages`, alarms to rearm for rows that must wait, and the database's time."""

    now_ms: int
    messages: list[Claimed] = field(default_factory=list)
    rearm: list[Alarm] = field(default_factory=list)
    drop: list[Alarm] = field(default_factory=list)
    """Claimed alarms to drop, because their rows were not leased."""
    lapsed: list[Alarm] = field(default_factory=list)
    """Claimed alarms of rows whose lease ran out."""
    buried: list[BuriedInfo] = field(default_factory=list)
    """The at-most-once messages whose lease ran out."""


def claim(
    database: Database,
    alarms: Sequence[Alarm],
    requests: Sequence[ClaimRequest],
    lease_ms: int,
    worker: str,
) -> ClaimedRows:
    """Lease the rows of `alarms` that are due and free. Then read the others once, without a lock.

    The rows are leased by one statement; on MySQL and MariaDB by three, in a transaction. `alarms` are the answer to
    `requests`, in due order within each (queue, key). Rows whose lease ran out are reclaimed and claimed again. While
    the clock monitor holds reclaiming off, they are left alone unless they were interrupted.
    """
    ended = end_unanswered(database)
    by_pk = {int(alarm.pk): alarm for alarm in alarms if is_pk(alarm.pk)}
    rearm = [alarm for alarm in ended if int(alarm.pk) not in by_pk]
    if not by_pk:
        return ClaimedRows(database.now_ms(), rearm=rearm, drop=list(alarms))
    token = secrets.randbits(63)
    dialect = database.dialect
    sets = {(alarm.queue, alarm.key) for alarm in by_pk.values()}
    later = _over_idle_slots(by_pk, requests)
    of_pks = database.dialect.among("r.id", list(by_pk))
    may_wait = database.dialect.among("r.id", later) if later else Sql("1 = 0")
    may_be_leased = checked(
        f"r.alias = %s AND r.due_at <= {dialect.now} AND r.token IS NULL AND r.crashes < {SUSPECT_CRASHES}"
        f" AND NOT (r.at_most_once AND {may_wait.text}) AND ({_any_of(sets)})"
    )
    found = Sql(
        f"delayq_ready r WHERE {of_pks.text} AND {may_be_leased}{dialect.skip_locked}",
        [*of_pks.parameters, database.alias, *may_wait.parameters, *chain.from_iterable(sets)],
    )
    asked_at = monotonic()
    try:
        claimed = _lease(database, found, lease_ms, token, worker)
        claimed.now_ms = claimed.now_ms or database.now_ms()
        claimed.rearm = rearm
        for one in claimed.messages:
            del by_pk[int(one.pk)]
        hold_off_ms = database.clock_monitor.hear(claimed.now_ms, asked_at, lease_ms)
        _look_at_others(database, by_pk, claimed, hold_off_ms)
        if claimed.lapsed:
            _claim_lapsed(database, claimed, requests, lease_ms, worker)
    except Exception:
        _note_unanswered(database, of_pks, token)
        raise
    return claimed


def claim_found(database: Database, found: Sql, of_found: Sql, lease_ms: int, worker: str) -> ClaimedRows:
    """Lease the due and free rows that `found` selects and locks.

    `found` is SQL for FROM that names the rows `r`. `of_found` is a condition that holds for all these rows, to find
    them again if the answer is lost. If no row is leased, the result's `now_ms` is 0, because no row told the time.
    """
    token = secrets.randbits(63)
    try:
        return _lease(database, found, lease_ms, token, worker)
    except Exception:
        _note_unanswered(database, of_found, token)
        raise


def _over_idle_slots(by_pk: Mapping[int, Alarm], requests: Iterable[ClaimRequest]) -> list[int]:
    """Return the pks of alarms beyond the idle slots of their pair. Their at-most-once messages may not be leased."""
    idle_slots: Counter[tuple[str, str]] = Counter()
    for request in requests:
        idle_slots[request.queue, request.key] += request.idle_slots
    later = []
    for pk, alarm in by_pk.items():
        idle_slots[alarm.queue, alarm.key] -= 1
        if idle_slots[alarm.queue, alarm.key] < 0:
            later.append(pk)
    return later


def _look_at_others(database: Database, by_pk: dict[int, Alarm], claimed: ClaimedRows, hold_off_ms: int) -> None:
    """Find out why each alarm's row could not be leased, and when it may be.

    A row whose lease ran out may be leased after `hold_off_ms`; an interrupted one at once.
    """
    if not by_pk:
        return
    of_pks = database.dialect.among("r.id", list(by_pk))
    found = database.rows(
        "SELECT r.id, r.queue, r.key, r.due_at, coalesce(r.lease_until, 0), r.crashes, r.interrupted"
        f" FROM delayq_ready r WHERE {of_pks.text}",
        of_pks.parameters,
    )
    now = claimed.now_ms
    for pk, queue, key, due_ms, lease_until_ms, crashes, interrupted in found:
        alarm = by_pk.pop(pk)
        if 0 < lease_until_ms <= now:
            if hold_off_ms and not interrupted:  # an interrupted lease is renewed no more
                _wait(claimed, [alarm], hold_off_ms)
            else:
                claimed.lapsed.append(alarm)
            continue
        claimed.drop.append(alarm)  # it may be rearmed below, perhaps for another queue or key
        if crashes < SUSPECT_CRASHES:
            wait_ms = max(due_ms, lease_until_ms) - now
            if wait_ms <= 0 and (queue, key) == (alarm.queue, alarm.key):
                # Another transaction holds the row, and may commit a cancel or roll it back; or no slot is free for it.
                wait_ms = min(max(now - due_ms, LEAST_LOCKED_WAIT_MS), MOST_LOCKED_WAIT_MS)
            if lease_until_ms or wait_ms <= SOON_MS:  # otherwise a pass schedules it in time
                claimed.rearm.append(Alarm(queue, key, alarm.pk, max(wait_ms, 0)))
    claimed.drop.extend(by_pk.values())


def _claim_lapsed(
    database: Database,
    claimed: ClaimedRows,
    requests: Sequence[ClaimRequest],
    lease_ms: int,
    worker: str,
) -> None:
    """Reclaim rows whose lease ran out, and claim them. Rows that another transaction holds have to wait."""
    reclaimed, alarms = reclaim(database, [int(alarm.pk) for alarm in claimed.lapsed], claimed.now_ms)
    claimed.buried += [info for info in reclaimed.values() if info]
    claimed.rearm += [alarm for alarm in alarms if alarm.wait_ms <= SOON_MS]
    free = [alarm for alarm in claimed.lapsed if int(alarm.pk) in reclaimed]
    _wait(claimed, [alarm for alarm in claimed.lapsed if int(alarm.pk) not in reclaimed], LEAST_LOCKED_WAIT_MS)
    if free:
        more = claim(database, free, requests, lease_ms, worker)
        claimed.messages += more.messages
        claimed.drop += more.drop
        claimed.rearm += more.rearm
        claimed.buried += more.buried


def _wait(claimed: ClaimedRows, alarms: Sequence[Alarm], wait_ms: int) -> None:
    claimed.drop += alarms
    claimed.rearm += [Alarm(alarm.queue, alarm.key, alarm.pk, wait_ms) for alarm in alarms]


def claim_suspect(database: Database, requests: Iterable[ClaimRequest], lease_ms: int, worker: str) -> ClaimedRows:
    """Lease one due suspect of the requested (queue, key) pairs."""
    dialect = database.dialect
    sets = [(request.queue, request.key) for request in requests if request.count > 0]
    if not sets:
        return ClaimedRows(database.now_ms())
    # Ordered by a sum, because PostgreSQL would otherwise read all rows in due order to avoid sorting a few.
    found = Sql(
        f"delayq_ready r WHERE r.alias = %s AND {SUSPECT.format(now=dialect.now)} AND {checked(_any_of(sets))}"
        f" ORDER BY r.due_at + 0, r.id LIMIT 1{dialect.skip_locked}",
        [database.alias, *chain.from_iterable(sets)],
    )
    crashed = Sql(f"r.alias = %s AND {CRASHED}", [database.alias])
    claimed = claim_found(database, found, crashed, lease_ms, worker)
    claimed.now_ms = claimed.now_ms or database.now_ms()
    return claimed


def _lease(database: Database, found: Sql, lease_ms: int, token: int, worker: str) -> ClaimedRows:
    """Lease the rows `r` that `found` selects and locks. The messages are in due order."""
    dialect = database.dialect
    changes = Sql(
        f"lease_until = {dialect.now} + %s, token = %s, worker = %s, started_at = {dialect.now}",
        [lease_ms, token, worker],
    )
    leased = dialect.change(database, changes, found, f"id, {dialect.now}, {CLAIMED}")
    now_ms = int(leased[0][1]) if leased else 0
    in_order = sorted(leased, key=lambda row: (row[8], row[0]))
    messages = [_claimed_of(pk, tuple(row), token, now_ms) for pk, _, *row in in_order]
    tagged = [(int(one.pk), one.header) for one in messages if one.header and one.header.tag is not None]
    if tagged:
        tags.add_to(database, tagged)
    if messages and database.has_rules:
        rules.add_to(database, messages)
    return ClaimedRows(now_ms, messages)


def _claimed_of(pk: int, row: Row, token: int, now_ms: int) -> Claimed:
    """Return the lease that a worker gets for a row of `CLAIMED`."""
    return Claimed(
        row[0], token, row[6], header_of(row), row[3].encode(), row[13], row[14], str(pk), row[19], now_ms, row[16]
    )


def _note_unanswered(database: Database, where: Sql, token: int) -> None:
    """Remember rows that a failed claim may have leased under `token`; the next claim frees them."""
    held = f"delayq_ready r WHERE {where.text} AND r.token = %s{database.dialect.skip_locked}"
    database.unanswered.append(Sql(held, [*where.parameters, token]))


def end_unanswered(database: Database) -> list[Alarm]:
    """End the leases of earlier claims whose answers were lost, and return alarms for their rows."""
    ended: list[Row] = []
    for leased in tuple(database.unanswered):
        ended += database.dialect.change(database, Sql(CLEAR_LEASE), leased, 'id, queue, "key"')
        database.unanswered.remove(leased)
    return [Alarm(queue, key, str(pk)) for pk, queue, key in ended]


def _any_of(sets: Collection[tuple[str, str]]) -> str:
    """Return the condition that a row is of one of the pairs. SQLite takes no expression that is 1,000 deep."""
    groups = [" OR ".join(["(r.queue = %s AND r.key = %s)"] * len(page)) for page in pages(list(sets), 50)]
    return " OR ".join(f"({group})" for group in groups)
