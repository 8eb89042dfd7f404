"""claim: the only thing that gives the right to run. An alarm says where to look; the row decides."""

import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from django.db import transaction

from django_delayq.brokers.base import SUSPECT_CRASHES, Alarm, Claimed, Want
from django_delayq.store.database import Database, marks
from django_delayq.store.moves import bury
from django_delayq.store.rows import CRASHES_NOW, FREE, MESSAGE, claimed_of

LAPSED_AT_MOST_ONCE = "its lease ran out; it may not have started, or have run in part, and must not start twice"

LEAST_LOCKED_WAIT_MS, MOST_LOCKED_WAIT_MS = 20, 1_000


@dataclass(slots=True)
class ClaimedRows:
    """What a claim of rows gave: `messages`, alarms to put again for the rows to wait for, and the clock."""

    now_ms: int
    messages: list[Claimed] = field(default_factory=list)
    again: list[Alarm] = field(default_factory=list)
    over: list[Alarm] = field(default_factory=list)
    """Claimed alarms to forget: their rows were not leased."""


def claim(
    database: Database, alarms: Sequence[Alarm], lease_ms: int, worker: str, *, from_alarms: bool = True
) -> ClaimedRows:
    """Lease the rows of `alarms` that are due and free, in one statement; look at the others once, without a lock.

    `from_alarms` tells that the clock gave them: then it knows of their rows, which are marked as placed.
    """
    by_pk = {int(alarm.pk): alarm for alarm in alarms if alarm.pk.isdecimal()}
    if not by_pk:
        return ClaimedRows(database.now_ms(), over=list(alarms))
    token = secrets.randbits(63)
    dialect = database.dialect
    free, crashes = FREE.format(now=dialect.now), CRASHES_NOW.format(least=dialect.least)
    sets = {(alarm.queue, alarm.key) for alarm in by_pk.values()}
    leased = database.rows(
        f"WITH due AS (SELECT r.id FROM delayq_ready r WHERE r.id IN ({marks(len(by_pk))}) AND r.alias = %s"
        f" AND r.due_at <= {dialect.now} AND {free} AND {crashes} < 2"
        f" AND NOT (r.token IS NOT NULL AND r.at_most_once) AND ({_any_of(sets)}){dialect.skip_locked})"
        f" UPDATE delayq_ready AS r SET lease_until = {dialect.now} + %s, token = %s, worker = %s,"
        f" placed = (r.placed OR %s), crashes = {crashes} WHERE r.id IN (SELECT id FROM due)"
        f" RETURNING id, {dialect.now}, {MESSAGE}",
        [*by_pk, database.alias, *chain.from_iterable(sets), lease_ms, token, worker, from_alarms],
    )
    claimed = ClaimedRows(int(leased[0][1]) if leased else database.now_ms())
    for pk, _, *row in sorted(leased, key=lambda row: (row[8], row[0])):  # by due time
        claimed.messages.append(claimed_of(tuple(row), token))
        del by_pk[pk]
    _look_at_others(database, by_pk, claimed)
    return claimed


def _look_at_others(database: Database, by_pk: dict[int, Alarm], claimed: ClaimedRows) -> None:
    """Why each alarm's row could not be leased, and when it may be."""
    if not by_pk:
        return
    found = database.rows(
        "SELECT r.id, r.queue, r.key, r.due_at, coalesce(r.lease_until, 0), r.token IS NOT NULL, r.at_most_once,"
        f" {CRASHES_NOW.format(least=database.dialect.least)} FROM delayq_ready r WHERE r.id IN ({marks(len(by_pk))})",
        list(by_pk),
    )
    now = claimed.now_ms
    lapsed = []
    for pk, queue, key, due_ms, lease_until_ms, had_lease, at_most_once, crashes in found:
        alarm = by_pk.pop(pk)
        claimed.over.append(alarm)  # if it is put again, then perhaps to another set
        if lease_until_ms <= now and had_lease and (at_most_once or crashes >= SUSPECT_CRASHES):
            lapsed.append(pk)
        elif crashes < SUSPECT_CRASHES:
            free_at_ms = max(due_ms, lease_until_ms)
            wait_ms = free_at_ms - now
            if wait_ms <= 0 and (queue, key) == (alarm.queue, alarm.key):
                # Another transaction holds the row: it may commit a cancel, or roll it back.
                wait_ms = min(max(now - due_ms, LEAST_LOCKED_WAIT_MS), MOST_LOCKED_WAIT_MS)
            claimed.again.append(Alarm(queue, key, alarm.pk, max(wait_ms, 0)))
    claimed.over.extend(by_pk.values())
    reclaim(database, lapsed)


def reclaim(database: Database, pks: Sequence[int]) -> int:
    """End leases that ran out, of rows that can't simply be leased again. Gives how many were buried."""
    if not pks:
        return 0
    dialect = database.dialect
    with transaction.atomic(database.using):
        lapsed = database.rows(
            "SELECT r.id, r.at_most_once FROM delayq_ready r"
            f" WHERE r.id IN ({marks(len(pks))}) AND r.token IS NOT NULL AND r.lease_until <= {dialect.now}"
            f"{dialect.skip_locked}",
            pks,
        )
        once = [pk for pk, at_most_once in lapsed if at_most_once]
        suspects = [pk for pk, at_most_once in lapsed if not at_most_once]
        crashes = CRASHES_NOW.format(least=dialect.least)
        if lapsed:
            database.changed(
                f"UPDATE delayq_ready AS r SET crashes = {crashes}, token = NULL, lease_until = NULL, worker = ''"
                f" WHERE r.id IN ({marks(len(lapsed))})",
                [*suspects, *once],
            )
        for pk in once:
            bury(database, pk, LAPSED_AT_MOST_ONCE)
    return len(once)


def claim_suspect(database: Database, wants: Iterable[Want], lease_ms: int, worker: str) -> ClaimedRows:
    """Lease one suspect that is due, of a wanted set."""
    dialect = database.dialect
    sets = [(want.queue, want.key) for want in wants if want.count > 0]
    if not sets:
        return ClaimedRows(database.now_ms())
    token = secrets.randbits(63)
    leased = database.rows(
        "WITH due AS (SELECT r.id FROM delayq_ready r WHERE r.alias = %s AND r.crashes >= 1"
        f" AND r.due_at <= {dialect.now} AND {FREE.format(now=dialect.now)} AND NOT r.at_most_once"
        f" AND {CRASHES_NOW.format(least=dialect.least)} >= 2"
        f" AND ({_any_of(sets)})"
        f" ORDER BY r.due_at, r.id LIMIT 1{dialect.skip_locked})"
        f" UPDATE delayq_ready AS r SET lease_until = {dialect.now} + %s, token = %s, worker = %s, placed = %s,"
        f" crashes = 2 WHERE r.id IN (SELECT id FROM due) RETURNING {dialect.now}, {MESSAGE}",
        [database.alias, *chain.from_iterable(sets), lease_ms, token, worker, True],
    )
    claimed = ClaimedRows(int(leased[0][0]) if leased else database.now_ms())
    claimed.messages = [claimed_of(tuple(row), token) for _, *row in leased]
    return claimed


def suspects_due(database: Database) -> int:
    """How many suspects are due, counted to 100."""
    dialect = database.dialect
    ((count,),) = database.rows(
        "SELECT count(*) FROM (SELECT 1 FROM delayq_ready r WHERE r.alias = %s AND r.crashes >= 1"
        f" AND r.due_at <= {dialect.now} AND NOT r.at_most_once AND {FREE.format(now=dialect.now)}"
        f" AND {CRASHES_NOW.format(least=dialect.least)} >= 2 LIMIT 100) AS found",
        [database.alias],
    )
    return int(count)


def bury_lapsed(database: Database) -> int:
    """Bury what must not start twice and whose lease ran out. Gives how many, at most 100."""
    lapsed = database.rows(
        "SELECT r.id FROM delayq_ready r WHERE r.alias = %s AND r.at_most_once AND r.token IS NOT NULL"
        f" AND r.lease_until <= {database.dialect.now} LIMIT 100",
        [database.alias],
    )
    return reclaim(database, [pk for (pk,) in lapsed])


def _any_of(sets: Collection[tuple[str, str]]) -> str:
    return " OR ".join(["(r.queue = %s AND r.key = %s)"] * len(sets))
