"""Undo bulk actions: put each message back that is still as the action left it.

An action that has a name writes a row of `delayq_action`, and for each message that it changes a row of `delayq_undo`,
in the transaction of the change: what the message was, and what shows later that nothing else has happened to it. No
other change writes there, so a message that no such action touches costs nothing more.

An undo takes the rows of messages page by page. The transaction that puts a page back also removes its rows of
`delayq_undo`. So an undo that is cut short goes on where it stopped, and of two undos each message is put back by one.

- A due time is given back if the message waits, is due when the action said, and was neither replaced nor attempted.
- What was sent again is cancelled if it waits, is due when it was sent for, and was neither replaced nor attempted.
- What was cancelled waits again if its row is kept, and no message has got its id since.

A due time that is past becomes now, and the message expires as long after it as before.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from django_delayq.brokers.base import BATCH, Action, Alarm, PutBack
from django_delayq.core.errors import DelayqError
from django_delayq.models import ActionRow, UndoRow
from django_delayq.store import operations
from django_delayq.store.database import Database, in_transaction
from django_delayq.store.sql import stepwise
from django_delayq.store.sql.dialect import SHARED, WAITING, Row, shared_with
from django_delayq.support.timestamps import DAY_MS
from django_delayq.support.translatable import text as _
from django_delayq.support.units import to_text

KEPT_MS = 7 * DAY_MS
"""How long an action can be undone."""
PAGE = 500
"""How many messages are put back in one transaction."""

UNSENT = "cancelled by the undo of its send"
"""The error of a message that was sent again, until an undo took that back: its id has ended as it did before."""

Kind = Literal["reschedule", "run_now", "cancel", "send_again"]
_RESCHEDULED = ("reschedule", "run_now")
_DID = {
    "reschedule": _("rescheduled messages"),
    "run_now": _("rescheduled messages"),
    "cancel": _("cancelled messages"),
    "send_again": _("sent messages again"),
}


class Waiting(NamedTuple):
    """A waiting message that the caller's transaction has locked, as it is before the action."""

    pk: int
    id: str
    due_ms: int
    scheduled_ms: int


# The actions


@in_transaction
def reschedule(
    database: Database, action: Action, ids: Sequence[str], delay_ms: int, at_ms: int | None, by_ms: int | None
) -> tuple[set[str], list[Alarm]]:
    """Reschedule waiting rows like `operations.reschedule`, as a part of the action."""
    is_now = delay_ms == 0 and at_ms is None and by_ms is None
    action_pk = _begin(database, action, "run_now" if is_now else "reschedule")
    before = _lock_waiting(database, ids)
    found, alarms = operations.reschedule(database, [each.id for each in before], delay_ms, at_ms, by_ms)
    now = _as_left(database, [each.pk for each in before])
    _keep(
        database,
        [
            UndoRow(
                action_pk=action_pk,
                message_pk=each.pk,
                due_at=due_ms,  # an InstantField takes ms too
                sent_at=sent_ms,
                attempts=attempts,
                was_due_at=each.due_ms,
                was_scheduled_at=each.scheduled_ms,
            )
            for each in before
            for due_ms, sent_ms, attempts in [now[each.pk]]
        ],
    )
    return found, alarms


@in_transaction
def cancel(database: Database, action: Action, ids: Sequence[str], running_by: str | None) -> set[str]:
    """Cancel rows like `operations.cancel`, as a part of the action. What runs and is asked to end is not undone."""
    action_pk = _begin(database, action, "cancel")
    before = _lock_waiting(database, ids)
    waiting = [each.id for each in before]
    found = operations.cancel(database, waiting if running_by is None else ids, running_by)
    _keep(database, [UndoRow(action_pk=action_pk, message_pk=each.pk) for each in before])
    return found


def note_sent(database: Database, action: Action, ids: Iterable[str]) -> None:
    """Note the messages that the caller's transaction has sent again, as a part of the action."""
    action_pk = _begin(database, action, "send_again")
    pks = [each.pk for each in _lock_waiting(database, list(ids))]
    _keep(
        database,
        [
            UndoRow(action_pk=action_pk, message_pk=pk, due_at=due_ms, sent_at=sent_ms, attempts=attempts)
            for pk, (due_ms, sent_ms, attempts) in _as_left(database, pks).items()
        ],
    )


def _begin(database: Database, action: Action, kind: Kind) -> int:
    """Return the primary key of the action's row, which is written for the first of its messages.

    No undo of the action begins before the caller's transaction ends.
    """
    database.begin_with_write()
    with database.telling_what_it_lacks():
        row, _is_new = ActionRow.objects.using(database.using).get_or_create(
            alias=database.alias,
            name=action.name,
            defaults={"kind": kind, "by": action.by, "acted_at": database.now_ms()},
        )
    # An undo that began before this commits would not see what is changed here.
    locked = f"SELECT r.undone_at FROM delayq_action r WHERE r.id = %s{database.dialect.lock_shared}"
    found = database.rows(locked, [row.pk])
    if not found:  # it was just removed, after a week
        raise unknown(action.name)
    if found[0][0] is not None:
        raise DelayqError(_("The action %(name)s was undone: give this one a name of its own.", name=repr(row.name)))
    if row.kind != kind and not {row.kind, kind} <= set(_RESCHEDULED):
        facts = {"name": repr(row.name), "did": _DID[row.kind]}
        raise DelayqError(_("The action %(name)s has %(did)s: give this one a name of its own.", **facts))
    return int(row.pk)


def _lock_waiting(database: Database, ids: Sequence[str]) -> list[Waiting]:
    if not ids:
        return []
    found = database.dialect.under_ids(database.alias, ids, WAITING, database.dialect.lock)
    rows = database.rows(f"SELECT r.id, r.message_id, r.due_at, r.scheduled_at FROM {found.text}", found.parameters)
    return [Waiting(*row) for row in rows]


def _as_left(database: Database, pks: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    """Return when messages are due, when they were sent, and their attempts, by primary key."""
    if not pks:
        return {}
    of_pks = database.dialect.among("r.id", pks)
    rows = database.rows(
        f"SELECT r.id, r.due_at, r.sent_at, r.failures + r.crashes FROM delayq_ready r WHERE {of_pks.text}",
        of_pks.parameters,
    )
    return {pk: (due_ms, sent_ms, attempts) for pk, due_ms, sent_ms, attempts in rows}


def _keep(database: Database, rows: Sequence[UndoRow]) -> None:
    """Write what puts messages back. Of a message that the action changed before, what it was first stays."""
    target = database.connection.features.supports_update_conflicts_with_target
    with database.telling_what_it_lacks():
        UndoRow.objects.using(database.using).bulk_create(
            rows,
            BATCH,
            update_conflicts=True,
            unique_fields=["action_pk", "message_pk"] if target else None,
            update_fields=["due_at", "sent_at", "attempts"],
        )


# The undo


def find(database: Database, name: str) -> ActionRow | None:
    """Return an action by its name; None if there is none, or none any more."""
    with database.telling_what_it_lacks():
        return ActionRow.objects.using(database.using).filter(alias=database.alias, name=name).first()


def unknown(name: str) -> DelayqError:
    """Return the error for a name under which nothing is known."""
    facts = {"name": repr(name), "kept": to_text(KEPT_MS)}
    return DelayqError(
        _("Nothing is known of an action %(name)s: it changed nothing, or was over %(kept)s ago.", **facts)
    )


def begin(database: Database, action: Action) -> bool:
    """Say in the action's row that `action.by` undoes it. Return whether nobody did before."""
    rows = ActionRow.objects.using(database.using).filter(alias=database.alias, name=action.name)
    with database.telling_what_it_lacks():
        return bool(rows.filter(undone_at__isnull=True).update(undone_at=database.now_ms(), undone_by=action.by))


def next_pks(database: Database, row: ActionRow, after: int = 0) -> list[int]:
    """Return the next page of messages that the action has changed and no undo has looked at, by primary key."""
    rows = database.rows(
        f"SELECT message_pk FROM delayq_undo WHERE action_pk = %s AND message_pk > %s ORDER BY message_pk LIMIT {PAGE}",
        [row.pk, after],
    )
    return [pk for (pk,) in rows]


def put_back(database: Database, row: ActionRow, pks: Sequence[int]) -> tuple[PutBack, list[Alarm]]:
    """Put messages back that are still as the action left them, and return alarms for them.

    None of these messages is put back later: an undo looks at each once.
    """
    return _put_back(database, row, pks) if pks else (PutBack(set(), 0), [])


@in_transaction
def _put_back(database: Database, row: ActionRow, pks: Sequence[int]) -> tuple[PutBack, list[Alarm]]:
    database.begin_with_write()
    of_pks = database.dialect.among("r.message_pk", pks)
    rows = database.rows(
        "SELECT r.id, r.message_pk, r.due_at, r.sent_at, r.attempts, r.was_due_at, r.was_scheduled_at"
        f" FROM delayq_undo r WHERE r.action_pk = %s AND {of_pks.text} ORDER BY r.message_pk{database.dialect.lock}",
        [row.pk, *of_pks.parameters],
    )
    stepwise.delete(database, [pk for pk, *_rest in rows], "delayq_undo")
    left = [each for _pk, *each in rows]
    if not left:
        return PutBack(set(), 0), []
    if row.kind == "send_again":
        cancelled = _cancel_sent(database, left)
        return PutBack(cancelled, len(left) - len(cancelled)), []
    changed = (_give_back if row.kind in _RESCHEDULED else _restore)(database, left)
    alarms = [Alarm(queue, key, str(pk), max(wait_ms, 0)) for pk, queue, key, wait_ms, *_rest in changed]
    return PutBack({pk for pk, *_rest in changed}, len(left) - len(changed)), alarms


_TIMES = {
    "of_id": str,
    "of_pk": int,
    "due_ms": int,
    "sent_ms": int,
    "old_attempts": int,
    "was_due_ms": int,
    "was_scheduled_ms": int,
}


def _give_back(database: Database, left: Sequence[Sequence[int]]) -> list[Row]:
    """Give messages back their due times. Return the pk, queue, key and wait of each."""
    dialect = database.dialect
    of_pks = dialect.among("r.id", [pk for pk, *_rest in left])
    ids: dict[int, str] = dict(
        database.rows(f"SELECT r.id, r.message_id FROM delayq_ready r WHERE {of_pks.text}", of_pks.parameters)
    )
    values = sorted((ids[pk], pk, *times) for pk, *times in left if pk in ids)
    if not values:
        return []
    due = f"{dialect.greatest}({dialect.now}, input.was_due_ms)"
    scheduled = f"(CASE WHEN input.was_due_ms < {dialect.now} THEN {dialect.now} ELSE input.was_scheduled_ms END)"
    return dialect.change_values(
        database,
        f"expires_at = r.expires_at - r.scheduled_at + {scheduled}, due_at = {due}, scheduled_at = {scheduled}",
        dialect.values_table("input", _TIMES, values),
        f"{WAITING} AND r.id = input.of_pk AND r.due_at = input.due_ms AND r.sent_at = input.sent_ms"
        " AND r.failures + r.crashes = input.old_attempts",
        f'id, queue, "key", due_at - {dialect.now}{database.noticed(len(values))}',
    )


def _cancel_sent(database: Database, left: Sequence[Sequence[int]]) -> set[int]:
    """Cancel messages that were sent again, and wait as they were sent."""
    as_left = {pk: tuple(times) for pk, *times, _due, _scheduled in left}
    of_pks = database.dialect.among("r.id", list(as_left))
    rows = database.rows(
        "SELECT r.id, r.due_at, r.sent_at, r.failures + r.crashes FROM delayq_ready r"
        f" WHERE {of_pks.text} AND {WAITING} ORDER BY {database.dialect.id_in_order}{database.dialect.lock}",
        of_pks.parameters,
    )
    pks = [pk for pk, *times in rows if tuple(times) == as_left[pk]]
    stepwise.cancel(database, pks, UNSENT)
    return set(pks)


def _restore(database: Database, left: Sequence[Sequence[int]]) -> list[Row]:
    """Let cancelled messages wait again. Return the pk, queue, key and wait of each.

    Whether a message got the id of one since, and has ended, is asked once the id is taken: then no other can get it.
    """
    dialect = database.dialect
    of_pks = dialect.among("r.id", [pk for pk, *_rest in left])
    ids: dict[int, str] = dict(
        database.rows(
            f"SELECT r.id, r.message_id FROM delayq_finish r WHERE {of_pks.text} AND r.outcome = 'cancelled'"
            f" ORDER BY r.message_id{dialect.lock}",
            of_pks.parameters,
        )
    )
    if not ids:
        return []
    now = dialect.now
    selected = shared_with(
        due_at=f"{dialect.greatest}({now}, due_at)",
        scheduled_at=f"CASE WHEN due_at < {now} THEN {now} ELSE scheduled_at END",
        expires_at=f"CASE WHEN due_at < {now} THEN expires_at - scheduled_at + {now} ELSE expires_at END",
    )
    last = {id: pk for pk, id in sorted(ids.items())}  # the action may have cancelled several under one id
    of_pks = dialect.among("r.id", sorted(last.values()))
    database.changed(
        f"INSERT INTO delayq_ready (id, {SHARED}) SELECT id, {selected} FROM delayq_finish r"
        f" WHERE {of_pks.text} ORDER BY r.message_id {dialect.unless_there}",
        of_pks.parameters,
    )
    rows = database.rows(
        f"SELECT r.id, r.queue, r.key, r.due_at - {now}{database.noticed(len(ids))} FROM delayq_ready r"
        f" WHERE {of_pks.text}",
        of_pks.parameters,
    )
    newest = _newest_ends(database, [ids[pk] for pk, *_rest in rows])
    stepwise.delete(database, [pk for pk, *_rest in rows if newest[ids[pk]] > pk])
    restored = [row for row in rows if newest[ids[row[0]]] == row[0]]
    stepwise.delete(database, [pk for pk, *_rest in restored], "delayq_finish")
    return restored


def _newest_ends(database: Database, ids: Sequence[str]) -> dict[str, int]:
    """Return the greatest primary key among the messages that have ended under each id: a later one was sent later."""
    newest: dict[str, int] = {}
    for table in ("delayq_finish", "delayq_error") if ids else ():
        found = database.dialect.under_ids(database.alias, ids, "", database.dialect.newest, table)
        for id, pk in database.rows(f"SELECT r.message_id, r.id FROM {found.text}", found.parameters):
            newest[id] = max(pk, newest.get(id, 0))
    return newest
