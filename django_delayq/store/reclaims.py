"""reclaim: leases that ran out are ended and counted, before their rows can be leased again."""

from collections.abc import Sequence
from functools import partial

from django.db import DatabaseError

from django_delayq.brokers.base import BATCH, LAPSED_AT_MOST_ONCE, BuriedInfo
from django_delayq.errors import BrokerRefused
from django_delayq.history import Ended, PastAttempt, add
from django_delayq.store.database import Database, is_away, marks
from django_delayq.store.moves import Again, Burial, bury, wait_again
from django_delayq.store.page import START as START, Position, page_after
from django_delayq.store.rows import CRASHED, CRASHES_NOW, ONCE

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
    dialect = database.dialect
    lapsed = database.rows(
        f"SELECT r.id, r.message_id, r.queue, r.key, r.at_most_once, {CRASHES_NOW.format(least=dialect.least)},"
        " r.failures, r.worker, r.started_at, r.lease_until, r.history FROM delayq_ready r"
        f" WHERE r.id IN ({marks(len(pks))}) AND r.token IS NOT NULL AND r.lease_until <= %s"
        f" ORDER BY r.id{dialect.skip_locked}",
        [*pks, now_ms],
    )
    reclaimed: dict[int, BuriedInfo | None] = {}
    buried, again = [], []
    for pk, id, queue, key, once, crashes, failures, worker, claimed_ms, lease_until_ms, history in lapsed:
        if once and may_bury:
            buried.append(Burial(pk, claimed_ms, lease_until_ms, LAPSED_AT_MOST_ONCE, more_crashes=1))
            reclaimed[pk] = BuriedInfo(id, queue, key, failures, LAPSED_AT_MOST_ONCE)
        else:
            outcome = Ended.INTERRUPTED if worker.startswith("!") else Ended.LOST
            lost = PastAttempt(failures + 1, claimed_ms, lease_until_ms, worker.removeprefix("!"), outcome)
            counts = {"more_failures": 1, "new_crashes": 0} if once else {"more_failures": 0, "new_crashes": crashes}
            again.append(Again(pk, None, cause="", past=add(history, lost), **counts))
            reclaimed[pk] = None
    bury(database, buried)
    wait_again(database, again)
    return reclaimed


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
