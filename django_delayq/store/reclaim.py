"""Reclaim: end the leases that ran out, and count them, before their rows can be leased again."""

from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple

from django.db import DatabaseError

from django_delayq.brokers.base import BATCH, BuriedInfo, Claimed, Header, pages
from django_delayq.core.errors import BrokerRefused
from django_delayq.core.message import State
from django_delayq.core.transitions import buried_info, lapse
from django_delayq.store.database import Database, is_away
from django_delayq.store.sql.moves import TimedTransition, bury, wait_again
from django_delayq.store.sql.rows import CRASHED, ONCE
from django_delayq.store.sql.selects import START, Position, page_after

PAGE = 100


LONG_S, REST = 1.0, 20
"""A look at all rows that took longer rests for this many times as long.

While an old snapshot is held, it reads every row that finished since.
"""


class Looked(NamedTuple):
    """How far the looks for leases that ran out have come: at all rows, and at at-most-once ones."""

    at_all: Position
    at_once: Position
    rests_until: float
    """The end of the rest of the look at all rows, by the monotonic clock."""


BEGIN = Looked(START, START, 0.0)


def reclaim(database: Database, pks: Sequence[int], now_ms: int) -> dict[int, BuriedInfo | None]:
    """End the leases that ran out: their rows are ready again, or buried where they must not start twice.

    Returns the pks of the rows, each with its message if that was buried. A row that another transaction holds is left
    alone. `now_ms` is the clock's time when the caller's watch let it reclaim: the clock may jump before a statement of
    this reads it.
    """
    if not pks:
        return {}
    try:
        return database.transaction(partial(_reclaim_all, database, pks, now_ms))
    except (DatabaseError, BrokerRefused) as error:
        if is_away(error):
            raise
        # One that can't be buried must not hold up the others. It counts a failure, so its next claim buries it.
        return database.transaction(partial(_reclaim_all, database, pks, now_ms, may_bury=False))


def _reclaim_all(
    database: Database, pks: Sequence[int], now_ms: int, *, may_bury: bool = True
) -> dict[int, BuriedInfo | None]:
    of_pks = database.among("r.id", sorted(pks))
    lapsed = database.rows(
        "SELECT r.id, r.message_id, r.queue, r.key, r.due_at, r.failures, r.crashes, r.worker, r.started_at,"
        " r.history, r.lease_until, r.at_most_once, r.interrupted FROM delayq_ready r"
        f" WHERE {of_pks.text} AND r.token IS NOT NULL AND r.lease_until <= %s"
        f" ORDER BY r.id{database.dialect.skip_locked}",
        [*of_pks.parameters, now_ms],
    )
    ended = [
        _lapse(_claimed(*row), lease_until_ms, bool(once), bool(interrupted), may_bury)
        for *row, lease_until_ms, once, interrupted in lapsed
    ]
    buried = [one for one in ended if one.transition.state is State.ERROR]
    bury(database, buried)
    wait_again(database, [one.transition for one in ended if one.transition.state is State.PENDING])
    ready = dict.fromkeys(int(one.transition.pk) for one in ended)
    return ready | {int(one.pk): buried_info(one) for one, _, _ in buried}


def _claimed(
    pk: int,
    id: str,
    queue: str,
    key: str,
    due_ms: int,
    failures: int,
    crashes: int,
    worker: str,
    claimed_ms: int,
    history: str,
) -> Claimed:
    """Return the lease of a row as its claim returned it."""
    return Claimed(id, 0, due_ms, Header(queue, key), b"", failures, crashes, str(pk), history, claimed_ms, worker)


def _lapse(
    claimed: Claimed, lease_until_ms: int, at_most_once: bool, interrupted: bool, may_bury: bool
) -> TimedTransition:
    """Return what becomes of a row whose lease ran out."""
    transition = lapse(claimed, lease_until_ms, at_most_once=at_most_once and may_bury, interrupted=interrupted)
    if at_most_once and not may_bury:
        transition.failures, transition.crashes = claimed.failures + 1, 0
    return TimedTransition(transition, claimed.claimed_ms, lease_until_ms)


def reclaim_lapsed(database: Database, now_ms: int, after: Looked = BEGIN) -> tuple[list[BuriedInfo], Looked]:
    """Reclaim every lease that ran out, whoever could run its message, and whatever the broker knows of it.

    There may be a backlog of due rows: one call looks at `BATCH` of them. At-most-once messages and suspects have an
    index each, and don't wait for that. Returns what was buried, and where the next call goes on; at the end it begins
    again.
    """
    suspects = database.rows(
        f"SELECT r.id FROM delayq_ready r WHERE r.alias = %s AND {CRASHED} AND {_ran_out(database)} LIMIT {PAGE}",
        [database.alias],
    )
    once, at_once = _lapsed(database, after.at_once, "delayq_ready_once", ONCE)
    every, at_all, rests_until = _every_lapsed(database, after)
    found = dict.fromkeys([*(pk for (pk,) in suspects), *once, *every])
    buried = []
    for page in pages(list(found), PAGE):
        buried += [info for info in reclaim(database, page, now_ms).values() if info]
    return buried, Looked(at_all, at_once, rests_until)


def _every_lapsed(database: Database, after: Looked) -> tuple[list[int], Position, float]:
    """Return the rows whose leases ran out among the next that are due, where to go on, and until when to rest."""
    began_at = monotonic()
    if began_at < after.rests_until:
        return [], after.at_all, after.rests_until
    every, position = _lapsed(database, after.at_all, "delayq_ready_list")
    took_s = monotonic() - began_at
    return every, position, monotonic() + REST * took_s if took_s > LONG_S else 0.0


def _lapsed(database: Database, after: Position, index: str, condition: str = "true") -> tuple[list[int], Position]:
    """Return the rows whose leases ran out among the next `BATCH` that are due, and where to go on."""
    looked_at = page_after(database, after, 0, [f"{_ran_out(database)} AS ran_out"], index, condition)
    found = database.rows(
        "SELECT * FROM (SELECT looked_at.*, row_number() OVER (ORDER BY due_at, id) AS number"
        f" FROM ({looked_at.text}) AS looked_at) AS numbered WHERE ran_out OR number = {BATCH} ORDER BY number",
        looked_at.parameters,
    )
    is_full = bool(found) and found[-1][3] == BATCH
    return [pk for _, pk, ran_out, _ in found if ran_out], found[-1][:2] if is_full else START


def _ran_out(database: Database) -> str:
    return f"(r.token IS NOT NULL AND r.lease_until <= {database.dialect.now})"
