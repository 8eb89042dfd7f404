"""Rescue: move rows from error to ready, a page of them in a few statements, however many there are."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from django_delayq.brokers.base import Alarm, pages
from django_delayq.core.history import add
from django_delayq.store.database import Database, Row, Sql
from django_delayq.store.sql.moves import PAGE
from django_delayq.store.sql.rows import SHARED, buried_attempt, shared_with
from django_delayq.store.sql.values import LongText

_HELD = {"pk": int, "past": LongText}


def rescue(database: Database, ids: Sequence[str]) -> tuple[set[str], list[Alarm]]:
    """Move rows from error to ready, due now, with their counts reset. Of several rows of an id, the last is rescued.

    An id that waits or runs again is left alone. It goes in the order of ids, so that two rescues can't deadlock.
    Returns the ids that were rescued, and alarms for them.
    """
    rows = [
        row for page in pages(sorted(set(ids)), PAGE) for row in database.transaction(partial(_rescue, database, page))
    ]
    return {id for _, id, _, _ in rows}, [Alarm(queue, key, str(pk)) for pk, _, queue, key in rows]


def _rescue(database: Database, ids: Sequence[str]) -> list[Row]:
    newest = _newest(database, ids)
    pasts = [_with_past(*row) for row in _lock(database, newest)] if newest else []
    return _move(database, pasts) if pasts else []


def _newest(database: Database, ids: Sequence[str]) -> list[int]:
    """Return the primary key of the last row of each id.

    They are compared here, because databases find no good index for it.
    """
    found = database.under_ids(ids, table="delayq_error")
    rows = database.rows(f"SELECT r.message_id, r.ended_at, r.id FROM {found.text}", found.parameters)
    return list({id: pk for id, _, pk in sorted(rows)}.values())


def _lock(database: Database, pks: Sequence[int]) -> list[Row]:
    of_pks = database.among("r.id", pks)
    return database.rows(
        "SELECT r.id, r.failures, r.started_at, r.ended_at, r.worker, r.error, r.detail, r.history FROM delayq_error r"
        f" WHERE {of_pks.text} ORDER BY r.message_id{database.dialect.lock}",
        of_pks.parameters,
    )


def _with_past(pk: int, *buried: Any) -> tuple[int, str]:
    """Return the pk of a row, and its history with the attempt that buried it."""
    *attempt, history = buried
    return pk, add(history, buried_attempt(*attempt))


def _move(database: Database, pasts: Sequence[tuple[int, str]]) -> list[Row]:
    """Move the locked rows whose ids are free. Returns their pk, id, queue and key."""
    now = database.dialect.now
    selected = shared_with(
        due_at=now,
        scheduled_at=now,
        expires_at=f"expires_at - scheduled_at + {now}",
        failures="0",
        crashes="0",
        error="''",
        worker="''",
        started_at="NULL",
        history="past",
    )
    held = database.joined(database.given("held", _HELD, pasts), Sql("r.id = held.pk"), table="delayq_error")
    database.changed(
        f"INSERT INTO delayq_ready (id, {SHARED}, placed) SELECT id, {selected}, %s"
        f" FROM {held.text} WHERE r.alias = %s ORDER BY r.message_id {database.dialect.unless_there}",
        [False, *held.parameters, database.alias],
    )
    found = database.among("r.id", [pk for pk, _ in pasts])
    rows = database.rows(
        f"SELECT r.id, r.message_id, r.queue, r.key FROM delayq_ready r WHERE {found.text}", found.parameters
    )
    if rows:
        moved = database.among("id", [pk for pk, *_ in rows])
        database.changed(f"DELETE FROM delayq_error WHERE {moved.text}", moved.parameters)
    return rows
