"""reclaim: leases that ran out are ended and counted, before their rows can be leased again."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from django.db import DatabaseError

from django_delayq.brokers.base import BATCH, BuriedInfo, Claimed, Header
from django_delayq.core.transitions import buried_info, lapse
from django_delayq.errors import BrokerRefused
from django_delayq.message import State
from django_delayq.store.database import Database, is_away, marks
from django_delayq.store.moves import Ended, bury, wait_again
from django_delayq.store.page import START as START, Position, page_after
from django_delayq.store.rows import CRASHED, ONCE

PAGE = 100


def reclaim(database: Database, pks: Sequence[int], now_ms: int) -> dict[int, BuriedInfo | None]:
    """End those leases that ran out: their rows are ready again, or buried where they must not start twice.

    Gives the pks of those ended, and what was buried. A row that another transaction holds is left alone. `now_ms` is
    what the clock said when the caller's watch let it reclaim: it may jump until a statement of this reads it.
    """
    if not pks:
        return {}
    try:
        return database.transaction(partial(_reclaim_all, database, pks, now_ms))
    except (DatabaseError, BrokerRefused) as error:
        if is_away(error):
            raise
        # One that can't be buried must not hold up the others. It counts a failure, so who claims it next buries it.
        return database.transaction(partial(_reclaim_all, database, pks, now_ms, may_bury=False))


def _reclaim_all(
    database: Database, pks: Sequence[int], now_ms: int, *, may_bury: bool = True
) -> dict[int, BuriedInfo | None]:
    lapsed = database.rows(
        "SELECT r.id, r.message_id, r.queue, r.key, r.due_at, r.failures, r.crashes, r.worker, r.started_at,"
        " r.history, r.lease_until, r.at_most_once FROM delayq_ready r"
        f" WHERE r.id IN ({marks(len(pks))}) AND r.token IS NOT NULL AND r.lease_until <= %s"
        f" ORDER BY r.id{database.dialect.skip_locked}",
        [*pks, now_ms],
    )
    ended = [_lapse(_claimed(*row), lease_until_ms, bool(once), may_bury) for *row, lease_until_ms, once in lapsed]
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


def _lapse(lost: Claimed, lease_until_ms: int, at_most_once: bool, may_bury: bool) -> Ended:
    """Return what becomes of a row whose lease ran out."""
    claimed = replace(lost, worker=lost.worker.removeprefix("!"))
    interrupted = claimed.worker != lost.worker
    transition = lapse(claimed, lease_until_ms, at_most_once=at_most_once and may_bury, interrupted=interrupted)
    if at_most_once and not may_bury:
        transition.failures, transition.crashes = claimed.failures + 1, 0
    return Ended(transition, claimed.claimed_ms, lease_until_ms)


def reclaim_lapsed(database: Database, now_ms: int, after: Position = START) -> tuple[list[BuriedInfo], Position]:
    """Reclaim what no alarm may lead to: suspects, and what must not start twice. Gives what was buried.

    At most `PAGE` of each in one call. Of the second a backlog may be due: one call looks at `BATCH` of them, and gives
    where the next one goes on, which starts anew at the end.
    """
    suspects = database.rows(
        f"SELECT r.id FROM delayq_ready r WHERE r.alias = %s AND {CRASHED} AND {_ran_out(database)} LIMIT {PAGE}",
        [database.alias],
    )
    once, position = _lapsed_once(database, after)
    reclaimed = reclaim(database, [*(pk for (pk,) in suspects), *once], now_ms)
    return [info for info in reclaimed.values() if info], position


def _lapsed_once(database: Database, after: Position) -> tuple[list[int], Position]:
    """Of the rows due after a position that must not start twice, those whose leases ran out, and the next position."""
    looked_at = page_after(database, after, 0, [f"{_ran_out(database)} AS ran_out"], "delayq_ready_once", ONCE)
    found = database.rows(
        "SELECT * FROM (SELECT looked_at.*, row_number() OVER (ORDER BY due_at, id) AS number"
        f" FROM ({looked_at.text}) AS looked_at) AS numbered WHERE ran_out OR number = {BATCH} ORDER BY number",
        looked_at.parameters,
    )
    lapsed = [(due_ms, pk) for due_ms, pk, ran_out, _ in found if ran_out]
    if len(lapsed) > PAGE:
        return [pk for _, pk in lapsed[:PAGE]], lapsed[PAGE - 1]
    is_full = bool(found) and found[-1][3] == BATCH
    return [pk for _, pk in lapsed], found[-1][:2] if is_full else START


def _ran_out(database: Database) -> str:
    return f"(r.token IS NOT NULL AND r.lease_until <= {database.dialect.now})"
