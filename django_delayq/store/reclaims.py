"""reclaim: leases that ran out are ended and counted, before their rows can be leased again."""

from collections.abc import Sequence
from functools import partial

from django_delayq.brokers.base import BATCH
from django_delayq.history import Ended, PastAttempt, add
from django_delayq.store.database import Database, marks
from django_delayq.store.moves import Burial, bury
from django_delayq.store.rows import CRASHES_NOW, UNLEASED

LAPSED_AT_MOST_ONCE = "its lease ran out; it may not have started, or have run in part, and must not start twice"
PAGE = 100


def reclaim(database: Database, pks: Sequence[int]) -> dict[int, bool]:
    """End those leases that ran out: their rows are ready again, or buried where they must not start twice.

    Gives the pks of those ended, and whether each was buried. A row that another transaction holds is left alone.
    """
    if not pks:
        return {}
    return database.transaction(partial(_reclaim_all, database, pks))


def _reclaim_all(database: Database, pks: Sequence[int]) -> dict[int, bool]:
    dialect = database.dialect
    lapsed = database.rows(
        f"SELECT r.id, r.at_most_once, {CRASHES_NOW.format(least=dialect.least)}, r.failures, r.worker,"
        " r.started_at, r.lease_until, r.history FROM delayq_ready r"
        f" WHERE r.id IN ({marks(len(pks))}) AND r.token IS NOT NULL AND r.lease_until <= {dialect.now}"
        f" ORDER BY r.id{dialect.skip_locked}",
        pks,
    )
    return {pk: _reclaim(database, pk, bool(once), *row) for pk, once, *row in lapsed}


def _reclaim(
    database: Database,
    pk: int,
    at_most_once: bool,
    crashes: int,
    failures: int,
    worker: str,
    claimed_ms: int,
    lease_until_ms: int,
    history: str,
) -> bool:
    """Whether it was buried."""
    if at_most_once:
        bury(database, pk, Burial(LAPSED_AT_MOST_ONCE, claimed_ms, lease_until_ms, crashes=1))
        return True
    outcome = Ended.INTERRUPTED if worker.startswith("!") else Ended.LOST
    lost = PastAttempt(failures + 1, claimed_ms, lease_until_ms, worker.removeprefix("!"), outcome)
    database.changed(
        f"UPDATE delayq_ready SET crashes = %s, history = %s, {UNLEASED} WHERE id = %s",
        [crashes, add(history, lost), pk],
    )
    return False


def reclaim_lapsed(database: Database) -> int:
    """Reclaim what no alarm may lead to: suspects, and what must not start twice. Gives how many were buried.

    At most `PAGE` of each in one call; of the second, among the `BATCH` that have been due for longest. To the others
    their alarms lead.
    """
    ran_out = f"r.token IS NOT NULL AND r.lease_until <= {database.dialect.now}"
    # Each by its own index. Of what must not start twice a backlog may be due: who holds a lease is among the first.
    lapsed = database.rows(
        "SELECT * FROM (SELECT r.id FROM delayq_ready r"
        f" WHERE r.alias = %s AND r.crashes >= 1 AND {ran_out} LIMIT {PAGE}) AS suspects"
        " UNION SELECT * FROM (SELECT r.id FROM (SELECT id, token, lease_until FROM delayq_ready"
        f" WHERE alias = %s AND at_most_once AND due_at <= {database.dialect.now} ORDER BY due_at LIMIT {BATCH}) AS r"
        f" WHERE {ran_out} LIMIT {PAGE}) AS once",
        [database.alias, database.alias],
    )
    return sum(reclaim(database, [pk for (pk,) in lapsed]).values())
