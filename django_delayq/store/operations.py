"""Cancel, reschedule, purge and rescue rows by their ids, and prune rows that ended long ago.

None of these needs a broker. Operations by id act in the caller's transaction. A prune takes a batch at a time. The
tally counts the rows that leave the tables for good.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from django_delayq.brokers.base import BATCH, Alarm, pages
from django_delayq.core.history import add
from django_delayq.store import belongings, rules
from django_delayq.store.database import Database, in_transaction
from django_delayq.store.queries import buried_attempt
from django_delayq.store.sql import stepwise
from django_delayq.store.sql.dialect import SHARED, WAITING, LongText, Row, Sql, marks, shared_with
from django_delayq.store.sql.stepwise import PAGE, count, delete


@in_transaction
def cancel(database: Database, ids: Sequence[str], running_by: str | None = None, why: str = "") -> set[str]:
    """Move waiting rows from ready to finish, with the outcome cancelled, and `why`. Return the ids that waited.

    If `running_by` says who asks, rows that run are marked too, and are among the ids. Who asked first stays the one
    who asked. What was kept for the ends of their runs (kept.py) is cancelled with them; what is sent later is kept.
    """
    if running_by is None:
        by_pk = _locked(database, ids, WAITING)
        stepwise.cancel(database, list(by_pk), why)
        return set(by_pk.values())
    found = database.dialect.under_ids(database.alias, ids, "", database.dialect.lock) if ids else None
    rows = database.rows(f"SELECT r.id, r.message_id, r.token FROM {found.text}", found.parameters) if found else []
    stepwise.cancel(database, [pk for pk, _, token in rows if token is None])
    if running := [pk for pk, _, token in rows if token is not None]:
        of_pks = database.dialect.among("id", running)
        database.changed(  # MariaDB sets the columns in this order
            "UPDATE delayq_ready SET again = NULL, cancel_by = CASE WHEN cancel_at IS NULL THEN %s ELSE cancel_by END,"
            f" cancel_at = coalesce(cancel_at, {database.dialect.now}) WHERE {of_pks.text}",
            [running_by, *of_pks.parameters],
        )
    return {id for _, id, _ in rows}


@in_transaction
def purge(database: Database, ids: Sequence[str]) -> set[str]:
    """Remove waiting rows for good, and count them. Return the ids that waited."""
    by_pk = _locked(database, ids, WAITING)
    remove_for_good(database, list(by_pk), "delayq_ready")
    count(database, "purged", len(by_pk))
    return set(by_pk.values())


@in_transaction
def purge_failed(database: Database, ids: Sequence[str]) -> set[str]:
    """Remove every buried row under the ids, and count it. Return the ids that had one."""
    by_pk = _locked(database, ids, table="delayq_error")
    remove_for_good(database, list(by_pk), "delayq_error")
    count(database, "purged", len(by_pk))
    return set(by_pk.values())


def remove_for_good(database: Database, pks: Sequence[int], table: str) -> None:
    """Remove rows, their tags and rules, and the records of what operators changed in their payloads."""
    delete(database, pks, table)
    belongings.remove(database, pks)
    if pks:
        changes = database.dialect.among("message_pk", pks)
        database.changed(f"DELETE FROM delayq_difference WHERE {changes.text}", changes.parameters)


def _locked(database: Database, ids: Sequence[str], condition: str = "", table: str = "delayq_ready") -> dict[int, str]:
    """Lock the rows under the ids. Return the ids by pk."""
    if not ids:
        return {}
    found = database.dialect.under_ids(database.alias, ids, condition, database.dialect.lock, table)
    return dict(database.rows(f"SELECT r.id, r.message_id FROM {found.text}", found.parameters))


def reschedule(
    database: Database, ids: Sequence[str], delay_ms: int, at_ms: int | None, by_ms: int | None = None
) -> tuple[set[str], list[Alarm]]:
    """Give waiting rows a new due time, and keep their counts. Return the ids that waited, and alarms for them.

    With `by_ms`, each is due that much later than before, but not before now.
    """
    if not ids:
        return set(), []
    dialect = database.dialect
    due, parameter = dialect.due(delay_ms, at_ms)
    if by_ms is not None:
        due, parameter = f"{dialect.greatest}({dialect.now}, r.due_at + %s)", by_ms
    changes = Sql(
        f"expires_at = r.expires_at - r.scheduled_at + {due}, scheduled_at = {due}, due_at = {due}",
        [parameter, parameter, parameter],
    )
    waiting = database.dialect.under_ids(database.alias, ids, WAITING, dialect.lock)
    returning = f'id, message_id, queue, "key", due_at - {dialect.now}{database.noticed(len(ids))}'
    changed = database.dialect.change(database, changes, waiting, returning)
    alarms = [Alarm(queue, key, str(pk), max(wait_ms, 0)) for pk, _, queue, key, wait_ms, *_ in changed]
    return {id for _, id, *_ in changed}, alarms


@in_transaction
def reschedule_by(database: Database, ids: Sequence[str], at_ms: int, rule: str) -> tuple[set[str], list[Alarm]]:
    """Reschedule like `reschedule`, to a time that a rule gave, and keep the rule in place of the messages' own."""
    found, alarms = reschedule(database, ids, 0, at_ms)
    rules.put(database, [(int(alarm.pk), rule, at_ms) for alarm in alarms])
    return found, alarms


def answers(ids: Sequence[str], found: Collection[str]) -> list[bool]:
    """Return for each id whether it was found. An id that is given twice was found only the first time."""
    left = set(found)
    each_answer = []
    for id in ids:
        each_answer.append(id in left)
        left.discard(id)
    return each_answer


_HELD = {"pk": int, "past": LongText}


def rescue(database: Database, ids: Sequence[str]) -> tuple[set[str], list[Alarm]]:
    """Move failed messages back to ready, due now, with their counts reset.

    Of several failed rows under one id, the last is rescued. An id that waits or runs again is left alone. Rows are
    locked in the order of ids, so that two rescues can't deadlock. Return the ids that were rescued, and their alarms.
    """
    rows = [row for page in pages(sorted(set(ids)), PAGE) for row in _rescue(database, page)]
    return {id for _, id, *_ in rows}, [Alarm(queue, key, str(pk)) for pk, _, queue, key, *_ in rows]


@in_transaction
def _rescue(database: Database, ids: Sequence[str]) -> list[Row]:
    newest = _newest(database, ids)
    pasts = [_with_past(*row) for row in _lock(database, newest)] if newest else []
    return _move(database, pasts) if pasts else []


def _newest(database: Database, ids: Sequence[str]) -> list[int]:
    """Return the primary key of the newest buried row of each id.

    Rows are compared here, because databases find no good index for that.
    """
    found = database.dialect.under_ids(database.alias, ids, table="delayq_error")
    rows = database.rows(f"SELECT r.message_id, r.ended_at, r.id FROM {found.text}", found.parameters)
    return list({id: pk for id, _, pk in sorted(rows)}.values())


def _lock(database: Database, pks: Sequence[int]) -> list[Row]:
    of_pks = database.dialect.among("r.id", pks)
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
    """Move the locked rows whose ids are free. Return their pk, id, queue and key."""
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
        first_at="NULL",
        merged="NULL",
    )
    held = database.dialect.joined(
        database.dialect.values_table("held", _HELD, pasts), Sql("r.id = held.pk"), table="delayq_error"
    )
    database.changed(
        f"INSERT INTO delayq_ready (id, {SHARED}) SELECT id, {selected}"
        f" FROM {held.text} WHERE r.alias = %s ORDER BY r.message_id {database.dialect.unless_there}",
        [*held.parameters, database.alias],
    )
    found = database.dialect.among("r.id", [pk for pk, _ in pasts])
    rows = database.rows(
        f"SELECT r.id, r.message_id, r.queue, r.key{database.noticed(len(pasts))}"
        f" FROM delayq_ready r WHERE {found.text}",
        found.parameters,
    )
    delete(database, [pk for pk, *_ in rows], "delayq_error")
    return rows


_COUNTED_AS = {"delayq_finish": "r.outcome", "delayq_error": "'dropped'"}


def prune_finished(database: Database, before_ms: int) -> int:
    """Remove a batch of rows that finished or were cancelled before `before_ms`.

    Also remove a batch of values that tasks returned before then. Return how many messages were removed; 0 if none was
    left.
    """
    database.changed(  # a derived table, because MySQL takes no LIMIT in a subquery
        "DELETE FROM delayq_returned WHERE id IN (SELECT id FROM (SELECT id FROM delayq_returned"
        f" WHERE alias = %s AND returned_at < %s ORDER BY returned_at LIMIT {BATCH}) AS batch)",
        [database.alias, before_ms],
    )
    return _prune(database, "delayq_finish", before_ms)


def prune_errors(database: Database, before_ms: int) -> int:
    """Remove a batch of rows that were buried before `before_ms`; return how many. They count as dropped."""
    return _prune(database, "delayq_error", before_ms)


def prune_actions(database: Database, before_ms: int) -> int:
    """Remove a batch of what is kept to undo the oldest action from before `before_ms`.

    Return `BATCH` if there was one: there may be more.
    """
    old = database.rows(
        "SELECT id FROM delayq_action WHERE alias = %s AND acted_at < %s ORDER BY acted_at LIMIT 1",
        [database.alias, before_ms],
    )
    for (pk,) in old:
        # In a derived table, because MySQL takes no LIMIT in a subquery
        removed = database.changed(
            "DELETE FROM delayq_undo WHERE id IN (SELECT id FROM (SELECT id FROM delayq_undo"
            f" WHERE action_pk = %s ORDER BY message_pk LIMIT {BATCH}) AS batch)",
            [pk],
        )
        if removed < BATCH:
            delete(database, [pk], "delayq_action")
    return BATCH if old else 0


def prunable(database: Database, table: str, before_ms: int) -> int:
    """Return how many rows of a table ended before `before_ms`."""
    ((number,),) = database.rows(
        f"SELECT count(*) FROM {table} r WHERE r.alias = %s AND r.ended_at < %s", [database.alias, before_ms]
    )
    return int(number)


def remove(database: Database, table: str, pks: Sequence[int]) -> int:
    """Remove these rows in the caller's transaction: an archive has kept them, or an erasure asks for it.

    Return how many. They count like pruned rows.
    """
    return sum(_remove(database, table, f"r.id IN ({marks(len(page))})", page) for page in pages(sorted(pks), BATCH))


def _remove(database: Database, table: str, condition: str, parameters: Sequence[int]) -> int:
    rows = database.rows(
        f"SELECT r.id, {_COUNTED_AS[table]} FROM {table} r WHERE r.alias = %s AND {condition}{database.dialect.lock}",
        [database.alias, *parameters],
    )
    _forget(database, table, rows)
    return len(rows)


@in_transaction
def _prune(database: Database, table: str, before_ms: int) -> int:
    rows = database.rows(  # rows that another worker prunes now are left to it
        f"SELECT r.id, {_COUNTED_AS[table]} FROM {table} r WHERE r.alias = %s AND r.ended_at < %s"
        f" ORDER BY r.ended_at LIMIT {BATCH}{database.dialect.skip_locked}",
        [database.alias, before_ms],
    )
    _forget(database, table, rows)
    return len(rows)


def _forget(database: Database, table: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    remove_for_good(database, [pk for pk, _ in rows], table)
    # Always in the same order, so that no deadlock arises
    for name, number in sorted(Counter(name for _, name in rows).items()):
        count(database, name, number)
