"""Walk sequences: the message of the next step is put in the transaction that ends the one before.

A row of `delayq_sequence` says which step a sequence has come to. It is there only while the sequence is under way. The
row is locked before a message of the sequence is ended, put back or cancelled, by workers, by `stop` and by upkeep: so
of an end and a stop, one comes after the other. If the end comes first, the stop finds the next step and cancels it. If
the stop comes first, the end puts nothing. Workers wait for no such lock, because a site's transaction may hold it for
long: they leave the message, and ask again. Only the transaction of an atomic handler waits.

A stop can't end a message that runs. It marks the row, and whatever ends that attempt removes the row, and cancels the
message if it would start again.

Upkeep looks at sequences whose message should have ended. It puts what a worker of an earlier version has left out, and
removes those whose message was cancelled or purged.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import QuerySet
from django.db.transaction import atomic

from django_delayq.brokers.base import BATCH, Alarm, Enqueued, NewMessage, Transition, pages
from django_delayq.core.codec import dumps, read
from django_delayq.core.message import State
from django_delayq.core.sequences import NewSequence, PlannedStep, asks_calendar, message_of
from django_delayq.core.steps import StepName
from django_delayq.models import ErrorMessage, FinishMessage, SequenceRow, SequenceTag
from django_delayq.store.database import Database, in_transaction
from django_delayq.store.enqueue import enqueue
from django_delayq.store.operations import cancel
from django_delayq.store.sql import stepwise
from django_delayq.store.sql.dialect import Columns
from django_delayq.support.logging import logger
from django_delayq.support.timestamps import from_ms

PAGE = 100
"""How many sequences upkeep looks at in one transaction."""
LATE = timedelta(minutes=1)
"""How long after a step was due upkeep looks whether it has ended unnoticed."""
_LATE_MS = LATE // timedelta(milliseconds=1)
OPEN = timedelta(minutes=10)
"""How long upkeep leaves a sequence alone whose message still waits, runs or has failed."""
STOPPED = "cancelled by the stop of its sequence at "
"""How the error of a message begins whose sequence was stopped, before the time in UTC and the tag."""
BY_TAG = " UTC, by its tag "
_PUT: Columns = {"pk": int, "new_step": int, "new_id": str, "look_ms": int, "waits": int}
_AS_PUT = (
    "step = held.new_step, message_id = held.new_id, look_at = held.look_ms, restarts = (held.waits = 1),"
    " stopped_at = NULL"
)
_PROGRESS = ("step", "message_id", "look_at", "stopped_at", "restarts")


class Locked(NamedTuple):
    """The sequences of some messages, by message id, and the ids whose sequence another transaction has locked."""

    rows: dict[str, SequenceRow]
    busy: frozenset[str]


NONE = Locked({}, frozenset())


class Ended(NamedTuple):
    """A lease that the caller's transaction has ended: the message's id, its row, and its new state."""

    id: str
    pk: int
    state: State


def ended_of(transitions: Iterable[Transition]) -> list[Ended]:
    """Return the leases that these transitions have ended."""
    return [Ended(one.id, int(one.pk), one.state) for one in transitions]


def lock(database: Database, ids: Collection[str]) -> Locked:
    """Lock the sequences whose current messages have these ids, except those that another transaction has locked."""
    if not ids:
        return NONE
    database.begin_with_write()
    found = {row.message_id: row for row in database.lock_free(_rows(database).filter(message_id__in=ids))}
    left = set(ids).difference(found)
    standing = _rows(database).filter(message_id__in=left).values_list("message_id", flat=True) if left else ()
    return Locked(found, frozenset(standing))


def lock_one(database: Database, id: str) -> dict[str, SequenceRow]:
    """Lock the sequence of the message with this id, and wait for it. Return it by that id, if there is one."""
    return {row.message_id: row for row in _rows(database).filter(message_id=id).select_for_update()}


def follow(database: Database, rows: Mapping[str, SequenceRow], ended: Iterable[Ended]) -> list[Alarm]:
    """Put the steps that follow messages whose leases have ended, and cancel those that must not start again.

    The caller's transaction has locked `rows`, and ended the leases. Return alarms to schedule.
    """
    ends = [(rows[one.id], one) for one in ended if one.id in rows]
    stopped: dict[datetime, list[int]] = {}
    for row, one in ends:
        if row.stopped_at and one.state is State.PENDING:
            stopped.setdefault(row.stopped_at, []).append(one.pk)
    for at, pks in stopped.items():
        stepwise.cancel(database, pks, _why_cancelled(at))
    return _go_on(database, [row for row, one in ends if _is_over(row, one.state)])


def _why_cancelled(stopped_at: datetime, tag: str | None = None) -> str:
    """Return the error of a message that was cancelled because its sequence was stopped, by a tag if it is given."""
    at = f"{STOPPED}{stopped_at:%Y-%m-%d %H:%M:%S}"
    return f"{at} UTC" if tag is None else f"{at}{BY_TAG}{tag!r}"


def _is_over(row: SequenceRow, state: State) -> bool:
    """Return whether a message whose lease ended in this state gives way to what follows.

    A failed message stands still: it may be rescued, and if its sequence was stopped, a rescue finds that here. One
    that waits again stands still too, unless its sequence was stopped, or it is none of the sequence.
    """
    if state is State.FAILED:
        return bool(row.restarts)
    return state is State.FINISHED or (state is not State.RUNNING and (row.stopped_at is not None or row.restarts))


def _go_on(database: Database, rows: Sequence[SequenceRow]) -> list[Alarm]:
    """Put the step after the one that each of these locked rows has come to; remove the rows that have no more.

    A step whose calendar raises is left to upkeep, because the end of the message before it must stand.
    """
    if not rows:
        return []
    now_ms = database.now_ms()
    following: list[tuple[SequenceRow, NewMessage]] = []
    over: list[int] = []
    for row in rows:
        is_stopped, plan = row.stopped_at is not None, plan_of(row)
        row.step = 0 if is_stopped else row.step
        row.stopped_at = None
        if row.step == len(plan) or (is_stopped and not row.restarts):
            over.append(row.pk)
            continue
        row.restarts = False
        try:
            following.append((row, _message_of(database, row, plan, row.step + 1, now_ms)))
        except Exception as error:  # noqa: BLE001 - a calendar is the site's code
            row.look_at = from_ms(now_ms) + LATE
            row.save(using=database.using, update_fields=_PROGRESS)
            logger.error("Step %d of sequence %s can not be put: %s", row.step + 1, row, error)
    _remove(database, over)
    return _put(database, following)[1]


def _message_of(
    database: Database, row: SequenceRow, plan: Sequence[PlannedStep], number: int, now_ms: int
) -> NewMessage:
    step, name = plan[number - 1], StepName(row.name, row.sequence_id, number)
    # If a query of a calendar fails, PostgreSQL refuses the rest of a transaction that has no savepoint.
    with atomic(database.using) if asks_calendar(step) else nullcontext():
        return message_of(step, name, row.data.encode(), now_ms)


def _put(database: Database, following: Sequence[tuple[SequenceRow, NewMessage]]) -> tuple[list[Enqueued], list[Alarm]]:
    """Enqueue the next message of each of these locked rows, and note it there. Return as `enqueue` does.

    A message that waits under the id gives way: it is none of the sequence. For one that runs, such as one that was
    sent again, the step waits: it is put when that ends.
    """
    enqueued: list[Enqueued] = []
    alarms: list[Alarm] = []
    for page in pages(following, BATCH):
        answers, new = enqueue(database, [message for _, message in page], "replace")
        values = [
            (row.pk, row.step + (not answer.running), message.id, answer.due_ms + _LATE_MS, int(answer.running))
            for (row, message), answer in zip(page, answers, strict=True)
        ]
        held = database.dialect.values_table("held", _PUT, values)
        written = database.dialect.update_held.format(table="delayq_sequence", changes=_AS_PUT, held=held.text)
        database.changed(written, held.parameters)
        enqueued += answers
        alarms += new
    return enqueued, alarms


def _remove(database: Database, pks: Sequence[int]) -> None:
    for page in pages(sorted(pks), BATCH):
        _tags(database).filter(sequence_pk__in=page).delete()
        _rows(database).filter(pk__in=page).delete()


# Starting and stopping


@in_transaction
def start(database: Database, name: str, new: Sequence[NewSequence]) -> tuple[list[Enqueued], list[Alarm]]:
    """Put the first steps of sequences. One that is under way with its id stays as it is.

    If that was stopped, and its last message still runs, the new one begins when that ends. If its message was
    cancelled or purged, it is over, and the new one takes its place. Return an answer for each, and alarms to schedule.
    """
    database.begin_with_write()
    answers: dict[int, Enqueued] = {}
    alarms: list[Alarm] = []
    todo = dict(enumerate(new))
    while todo:  # first one of each id, then the second of each id that is given twice, and so on
        first = {each.id: i for i, each in reversed(todo.items())}
        started, further = _start(database, name, [todo.pop(i) for i in sorted(first.values())])
        answers |= {first[id]: answer for id, answer in started.items()}
        alarms += further
    return [answers[i] for i in range(len(new))], alarms


def _start(database: Database, name: str, new: Sequence[NewSequence]) -> tuple[dict[str, Enqueued], list[Alarm]]:
    """Put the first steps of sequences with different ids, like `start`. Return the answers by id."""
    now = from_ms(database.now_ms())
    rows = _lock_for_start(database, name, new, now)
    states = _open_states(database, [row.message_id for row in rows.values() if row.message_id])
    answers: dict[str, Enqueued] = {}
    now_ms = database.now_ms()  # once no other transaction is waited for
    begins: list[tuple[SequenceRow, NewMessage]] = []
    tags: list[SequenceTag] = []
    for each in new:
        row = rows[each.id]
        state = states.get(row.message_id)
        if row.stopped_at is not None and state is State.FAILED:
            state = None  # a stopped sequence does not go on with that
        if state is not None and (row.stopped_at is None or row.restarts):
            answers[each.id] = Enqueued(row.message_id, 0, created=False, running=state is State.RUNNING)
            continue
        if row.message_id:
            _write_anew(database, row, each, now, waits=state is not None)
        tags += [SequenceTag(alias=database.alias, tag=tag, sequence_pk=row.pk) for tag in each.tags]
        answers[each.id] = Enqueued(row.message_id, 0, created=True, running=True)
        if state is None:
            begins.append((row, _message_of(database, row, each.plan, 1, now_ms)))
    _tags(database).bulk_create(tags, BATCH)
    enqueued, alarms = _put(database, begins)
    for (row, _), answer in zip(begins, enqueued, strict=True):
        due_ms = 0 if answer.running else answer.due_ms
        answers[row.sequence_id] = replace(answer, created=True, due_ms=due_ms)
    return answers, alarms


def _lock_for_start(database: Database, name: str, new: Sequence[NewSequence], now: datetime) -> dict[str, SequenceRow]:
    """Lock the rows of sequences by their ids. Make those that are not there, without a message.

    They are made in the order of their ids, and before any other is locked, so that two starts don't deadlock unless
    an end removes a row in between.
    """
    rows: dict[str, SequenceRow] = {}
    named = _rows(database).filter(name=name)
    in_order = sorted(new, key=lambda each: each.id)
    while missing := [each for each in in_order if each.id not in rows]:
        ids = [each.id for each in missing]
        there = set(named.filter(sequence_id__in=ids).values_list("sequence_id", flat=True))
        made = [_new_row(database, name, each, now) for each in missing if each.id not in there]
        _rows(database).bulk_create(made, BATCH, ignore_conflicts=True)
        rows |= {row.sequence_id: row for row in _lock_by_ids(named, ids)}
    return rows


def _lock_by_ids(rows: QuerySet[SequenceRow], ids: Collection[str]) -> list[SequenceRow]:
    """Lock those of the rows that have these ids, and wait for each.

    They are locked by primary key, and in its order: with no other lock the way does not matter in which a database
    finds them, which may cross rows that are locked by others.
    """
    pks = list(rows.filter(sequence_id__in=ids).values_list("pk", flat=True))
    found = _locked(rows.filter(pk__in=pks))
    left = set(ids).difference(row.sequence_id for row in found)
    if left:  # at REPEATABLE READ only a lock sees what was written since the transaction began
        found += _locked(rows.filter(sequence_id__in=left))
    return found


def _locked(rows: QuerySet[SequenceRow]) -> list[SequenceRow]:
    return list(rows.order_by("pk").select_for_update())


def _new_row(database: Database, name: str, new: NewSequence, now: datetime) -> SequenceRow:
    row = SequenceRow(alias=database.alias, name=name, sequence_id=new.id, step=0, message_id="")
    row.look_at = now
    return _written(row, new, now)


def _written(row: SequenceRow, new: NewSequence, now: datetime) -> SequenceRow:
    row.plan, row.data, row.started_at = dumps(list(new.plan)).decode(), new.body.decode(), now
    return row


def _write_anew(database: Database, row: SequenceRow, new: NewSequence, now: datetime, *, waits: bool) -> None:
    """Write a new start into the row of an earlier one, which is over, or ends with the message that still runs."""
    _written(row, new, now)
    _tags(database).filter(sequence_pk=row.pk).delete()
    row.restarts, row.step = waits, row.step if waits else 0
    row.stopped_at = row.stopped_at if waits else None
    row.save(using=database.using)


@in_transaction
def stop(database: Database, name: str | None, ids: Collection[str], tag: str | None) -> int:
    """Stop sequences by their ids and by a tag, and cancel their waiting messages. Return how many were under way.

    A message that runs is let end; of one that has failed, a rescue starts nothing. With no `name`, sequences of all
    names are stopped.
    """
    database.begin_with_write()
    named = _rows(database) if name is None else _rows(database).filter(name=name)
    rows = {row.pk: row for row in _lock_by_ids(named, ids)} if ids else {}
    if tag is not None:
        pks = list(_tags(database).filter(tag=tag).values_list("sequence_pk", flat=True))
        rows |= {row.pk: row for row in _locked(named.filter(pk__in=pks))}
    ids_of_messages = [row.message_id for row in rows.values()]
    now = from_ms(database.now_ms())
    why = _why_cancelled(now, None if ids else tag)
    cancelled = {id for page in pages(ids_of_messages, BATCH) for id in cancel(database, page, why=why)}
    states = _open_states(database, ids_of_messages)
    under_way = [
        row
        for row in rows.values()
        if row.message_id in cancelled or (row.message_id in states and (row.stopped_at is None or row.restarts))
    ]
    _remove(database, [row.pk for row in rows.values() if row.message_id in cancelled])
    left = [row for row in rows.values() if row.message_id not in cancelled]
    for row in left:
        row.stopped_at, row.restarts = row.stopped_at or now, False
    _rows(database).bulk_update(left, _PROGRESS, batch_size=BATCH)
    return len(under_way)


def stopped_among(database: Database, ids: Collection[str]) -> frozenset[str]:
    """Return those of the ids of claimed messages whose sequences were stopped after the claim."""
    stopped = _rows(database).filter(stopped_at__isnull=False)
    return frozenset(
        id
        for page in pages(sorted(ids), BATCH)
        for id in stopped.filter(message_id__in=page).values_list("message_id", flat=True)
    )


# Upkeep


@in_transaction
def mend(database: Database) -> tuple[list[Alarm], bool]:
    """Go on with sequences whose message has ended unnoticed. Return alarms, and whether there may be more to do."""
    database.begin_with_write()
    now = from_ms(database.now_ms())
    due = _rows(database).filter(look_at__lte=now).order_by("look_at")
    rows = list(database.lock_free(due)[:PAGE])
    if not rows:
        return [], False
    states = _open_states(database, [row.message_id for row in rows])
    still_open = [row for row in rows if row.message_id in states]
    for row in still_open:
        row.look_at = now + OPEN
    _rows(database).bulk_update(still_open, ["look_at"])
    gone = [row for row in rows if row.message_id not in states]
    finished = _finished_among(database, gone)
    goes_on = [row for row in gone if row.message_id in finished or row.restarts or not row.step]
    _remove(database, [row.pk for row in gone if row not in goes_on])
    return _go_on(database, goes_on), len(rows) == PAGE


def _finished_among(database: Database, rows: Sequence[SequenceRow]) -> frozenset[str]:
    """Return the ids of the messages of these sequences that have finished, and were not cancelled."""
    ids = [row.message_id for row in rows]
    ended = FinishMessage.objects.using(database.using).filter(alias=database.alias, message_id__in=ids)
    last = {id: (at, outcome) for id, at, outcome in sorted(ended.values_list("message_id", "ended_at", "outcome"))}
    return frozenset(
        row.message_id
        for row in rows
        if row.message_id in last
        and last[row.message_id][0] >= row.started_at  # else it is of an earlier start
        and last[row.message_id][1] == FinishMessage.Outcome.FINISHED
    )


# Reading


def under_way(database: Database, tag: str, most: int) -> list[SequenceRow]:
    """Return the sequences under way that have the tag, the last that were started first, `most` of them at most."""
    tagged = _tags(database).filter(tag=tag).order_by("-sequence_pk").values_list("sequence_pk", flat=True)
    return list(_rows(database).filter(pk__in=list(tagged[:most])).order_by("-pk"))


def find(database: Database, name: str, id: str) -> SequenceRow | None:
    """Return the sequence under way with this id. One whose message was cancelled or purged is over."""
    row = _rows(database).filter(name=name, sequence_id=id).first()
    if row is None or row.restarts or _open_states(database, [row.message_id]) or _finished_among(database, [row]):
        return row
    return None


def of_message(database: Database, message_id: str) -> SequenceRow | None:
    """Return the sequence under way that has come to the message with this id."""
    return _rows(database).filter(message_id=message_id).first()


def plan_of(row: SequenceRow) -> list[PlannedStep]:
    """Return the steps with which a sequence was started."""
    return read(row.plan, list[PlannedStep])


def _open_states(database: Database, ids: Collection[str]) -> dict[str, State]:
    """Return the states of the messages that wait, run or have failed under these ids."""
    states: dict[str, State] = {}
    for page in pages(sorted(ids), BATCH):
        failed = ErrorMessage.objects.using(database.using).filter(alias=database.alias, message_id__in=page)
        states |= dict.fromkeys(failed.values_list("message_id", flat=True), State.FAILED)
        found = database.dialect.under_ids(database.alias, page)
        rows = database.rows(f"SELECT r.message_id, r.token FROM {found.text}", found.parameters)
        states |= {id: State.PENDING if token is None else State.RUNNING for id, token in rows}
    return states


def _rows(database: Database) -> QuerySet[SequenceRow]:
    return SequenceRow.objects.using(database.using).filter(alias=database.alias)


def _tags(database: Database) -> QuerySet[SequenceTag]:
    return SequenceTag.objects.using(database.using).filter(alias=database.alias)
