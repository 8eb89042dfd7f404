"""Put the occurrences of schedules: each is a message, and is put once the one before it has ended.

A row of `delayq_schedule` says which occurrence was put last. Whoever puts the next one locks that row, and writes the
row and the message in one transaction. So none is missed and none is put twice, whoever dies, and there is no leader. A
worker does it right after it has ended a message. Maintenance does it for messages that ended in another way
(cancelled, purged, or ended by a worker that died before it came to this), and looks from the time at which the message
was due.

With `overlap="allow"` nothing waits for an end: maintenance puts each occurrence some seconds before its time.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

from django.db import DatabaseError
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery

from django_delayq.brokers.base import BATCH, Alarm, Header, NewMessage, pages
from django_delayq.core.codec import dumps, loads, read
from django_delayq.core.occurrences import (
    in_form_of,
    instant_now,
    local_time_of,
    occurrence_id,
    occurrence_of,
    schedule_of,
)
from django_delayq.core.recurrence import (
    GRACE,
    CatchUp,
    NewSchedule,
    Overlap,
    Rule,
    check_comes,
    next_to_put,
    not_before,
    rule_of,
    to_come,
)
from django_delayq.core.rules import LocalTime, Rule as DueRule, decode, encode, is_due_by
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage, Schedule
from django_delayq.store import rules
from django_delayq.store.database import Database, in_transaction, is_away
from django_delayq.store.enqueue import ended_under, enqueue
from django_delayq.store.operations import cancel, reschedule
from django_delayq.support.logging import logger
from django_delayq.support.timestamps import EPOCH, from_ms, to_epoch_ms

PAGE = 100
"""For how many schedules one transaction puts the next occurrence."""
AHEAD = timedelta(seconds=10)
"""How long before its time an occurrence is put if it does not wait for the one before it."""
LOOK_MS = 5_000
"""How often maintenance looks, in ms, if it knows of nothing to do before."""
NONE_MS = 60_000
"""How often maintenance looks while there are no schedules, in ms: most sites have none."""
_MOMENT = timedelta(microseconds=1)
MISTAKE = timedelta(minutes=1)
"""How long a schedule is left alone after its rule could not be read or resolved."""
WITHDRAWN = "withdrawn: its schedule was changed or removed"
"""The error of a cancelled occurrence that may be put again, unlike one that somebody else has cancelled."""
PAUSED = "withdrawn: its schedule was paused"
"""The error of one that a pause has cancelled: if its time is still to come when the pause ends, it is put again."""
P = ParamSpec("P")
T = TypeVar("T")
_TIMES = ("rule", "window", "start_at", "until_at", "most")
_PROGRESS = ("last_at", "message_id", "look_at", "put_count", "error")


class Changed(NamedTuple):
    """The names of the schedules that were changed, or the ids that were put, and alarms to schedule."""

    names: list[str]
    alarms: list[Alarm]


def _writing(work: Callable[Concatenate[Database, P], T]) -> Callable[Concatenate[Database, P], T]:
    """Make a function of a database run in a transaction that may write after it has read."""

    @in_transaction
    @wraps(work)
    def run(database: Database, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with database.telling_what_it_lacks():
            database.begin_with_write()
            return work(database, *args, **kwargs)

    return run


# Putting what comes next


def put_due(database: Database) -> tuple[list[Alarm], int]:
    """Put the next occurrence of the schedules whose last message was due and has ended, `PAGE` of them at most.

    Also return how many ms may pass until the next look.
    """
    now = database.dialect.now
    rows = database.rows(
        f"SELECT s.id, s.look_at - {now} FROM delayq_schedule s WHERE s.alias = %s AND s.look_at <= {now} + {LOOK_MS}"
        " AND (s.overlap = 'allow' OR NOT EXISTS (SELECT 1 FROM delayq_ready r WHERE r.message_id = s.message_id"
        f" AND r.alias = s.alias)) ORDER BY s.look_at LIMIT {PAGE}",
        [database.alias],
    )
    due = [pk for pk, wait_ms in rows if wait_ms <= 0]
    alarms = put_following(database, {"pk__in": due}) if due else []
    if not rows:
        return alarms, LOOK_MS if rows_of(database).filter(look_at__isnull=False).exists() else NONE_MS
    return alarms, 0 if len(due) == PAGE else next(wait_ms for _, wait_ms in rows)


def first_look(database: Database) -> datetime | None:
    """Return when `put_due` has something to put, by what is known now; None if it never has."""
    rows = rows_of(database).filter(look_at__isnull=False)
    waiting = ReadyMessage.objects.using(database.using).filter(alias=database.alias, message_id=OuterRef("message_id"))
    found = rows.filter(Q(overlap="allow") | ~Exists(waiting)).order_by("look_at").first()
    return None if found is None else found.look_at


def put_following(database: Database, found: Mapping[str, Collection[object]]) -> list[Alarm]:
    """Put the next occurrence of those schedules in the ORM's filter `found` whose last message has ended.

    A schedule that another transaction holds is left to the next maintenance. One for which the database refuses
    something, perhaps a query of its calendar, holds up no other.
    """
    try:
        return _put_following(database, found)
    except Exception as error:  # a calendar is the site's code
        if is_away(error):
            raise
        failure = error
    ((name, values),) = found.items()
    if len(values) > 1:
        return [alarm for value in values for alarm in put_following(database, {name: [value]})]
    for row in rows_of(database).filter(look_at__isnull=False, **found):
        _note_mistake(row, from_ms(database.now_ms()), failure)
        row.save(using=database.using, update_fields=["look_at", "error"])
    return []


def _note_mistake(row: Schedule, now: datetime, error: Exception) -> None:
    row.look_at, row.error = now + MISTAKE, f"{type(error).__name__}: {error}"
    logger.error("The next occurrence of schedule %r can not be put: %s", row.name, row.error)


@_writing
def _put_following(database: Database, found: Mapping[str, Collection[object]]) -> list[Alarm]:
    rows = list(database.lock_free(rows_of(database).filter(look_at__isnull=False, **found)))
    if not rows:
        return []
    now = from_ms(database.now_ms())
    open_ids = _open_among(database, [row.message_id for row in rows if row.overlap != "allow"])
    over = [row for row in rows if row.message_id not in open_ids]
    ends = ended_under(database, [row.message_id for row in over if row.overlap == "skip"])
    messages: list[NewMessage] = []
    for row in over:
        end = ends.get(row.message_id)
        ended_at = None if end is None or end.ended_ms is None else from_ms(end.ended_ms)
        try:
            messages += _following(database, row, rule_of(row.rule), now, ended_at)
        except Exception as error:
            if isinstance(error, DatabaseError) or isinstance(error.__cause__, DatabaseError):
                raise  # PostgreSQL refuses the rest of the transaction
            _note_mistake(row, now, error)
    if over:
        Schedule.objects.using(database.using).bulk_update(over, _PROGRESS)
    return _enqueued(database, messages)


def _following(
    database: Database, row: Schedule, rule: Rule, now: datetime, ended_at: datetime | None
) -> Iterator[NewMessage]:
    """Yield the messages to put now, and note them in the row.

    What has ended already is left out: it ran early, or ran before the schedule's times were changed or clocks put
    back.
    """
    row.error = ""
    while row.overlap != "allow" or _covered(row) <= now + AHEAD:
        following = rule.after(not_before(_covered(row), row.start_at))
        at = next_to_put(
            rule, following, now, ended_at, cast("CatchUp", row.catch_up), cast("Overlap", row.overlap), row.until_at
        )
        while at is not None and not _is_past_end(row, at) and _has_ended(database, [id_of(row, at)]):
            at = rule.after(at)
        if at is None or _is_past_end(row, at):
            row.look_at = None
            return
        yield _put(row, at)
        if row.overlap != "allow":
            return
    row.look_at = _covered(row) - AHEAD  # clocks may have been put back since it was put


def _is_past_end(row: Schedule, at: datetime) -> bool:
    return (row.until_at is not None and at > row.until_at) or (row.most is not None and row.put_count >= row.most)


def _put(row: Schedule, at: datetime) -> NewMessage:
    """Return the message of an occurrence, and note in the row that it is put."""
    message = message_of(row, at)
    assert message.at_ms is not None  # noqa: S101  - for the type checker
    row.last_at, row.message_id, row.put_count = at, message.id, row.put_count + 1
    row.look_at = _look_at(row, from_ms(message.at_ms))
    return message


def _look_at(row: Schedule, due_at: datetime) -> datetime:
    """Return when to look for what follows on the last occurrence, whose message is due at `due_at`."""
    at: datetime = row.last_at
    return at - AHEAD if row.overlap == "allow" else due_at


def _covered(row: Schedule) -> datetime:
    """Return up to when occurrences were put: where the last one is now.

    That is `last_at`, unless the time-zone database has changed since.
    """
    at: datetime | None = row.last_at
    assert at is not None  # noqa: S101  - the caller has looked
    return instant_now(row.message_id, at)


def id_of(row: Schedule, at: datetime) -> str:
    """Return the id of an occurrence of a schedule's rule."""
    zone: str | None = loads(row.rule).get("zone")
    return occurrence_id(row.name, at, zone)


def message_of(row: Schedule, at: datetime) -> NewMessage:
    """Return the message of an occurrence, in the schedule's window."""
    return _message(row, id_of(row, at), at, decode(row.window) if row.window else DueRule())


def _message(row: Schedule, id: str, at: datetime, due: DueRule) -> NewMessage:
    """Return the message of an occurrence. It keeps the rule `due` if it has a window or its id has a local time."""
    local = local_time_of(id)
    due = replace(due, from_ms=to_epoch_ms(at)) if local is None else replace(due, at=LocalTime(*local))
    rule = encode(due) if local is not None or due.windows or due.spread_ms else None
    return NewMessage(id, _header_of(row), row.data.encode(), at_ms=due.due_ms(id), rule=rule or "")


def _header_of(row: Schedule) -> Header:
    header = read(row.header, Header)
    if row.catch_up == "none":
        grace_ms = GRACE // timedelta(milliseconds=1)
        header.expires_ms = min(header.expires_ms or grace_ms, grace_ms)
    return header


def _enqueued(database: Database, messages: Sequence[NewMessage]) -> list[Alarm]:
    return [alarm for page in pages(messages, BATCH) for alarm in enqueue(database, page, "keep")[1]]


# Changing schedules


def is_of_code(name: str) -> ValueError:
    """Return the error for a schedule that is to have the name of one of the code."""
    return ValueError(
        f"name={name!r} is a schedule of the code, which a worker would write again; choose another name."
    )


@_writing
def save(database: Database, wanted: NewSchedule) -> Changed:
    """Write a schedule. One that has its name is changed to it, and keeps its pause and its number of occurrences.

    If it was like this already, nothing changes. Otherwise the next occurrence from now on is put in place of the one
    that waits. One that has begun, or is overdue, stays as it is, and its end puts the next. Raises `ValueError` for
    the name of a schedule that is in the code, unless the code writes it, and like `check_times` and `_check_count`.
    """
    asked = columns_of(wanted)
    paused_at = from_ms(database.now_ms()) if wanted.paused else None
    pause = {"paused_at": paused_at, "reason": wanted.paused}
    row = None
    while row is None:  # another process may remove it in between
        new = Schedule(alias=database.alias, name=wanted.name, message_id="", **pause, **asked)
        # Of two processes that write it for the first time, the second finds the row of the first
        Schedule.objects.using(database.using).bulk_create([new], ignore_conflicts=True)
        row = _locked(database).filter(name=wanted.name).first()
    if row.origin == Schedule.Origin.CODE != wanted.origin and row.gone_at is None:
        raise is_of_code(wanted.name)
    if row.message_id and row.gone_at is None and all(getattr(row, name) == value for name, value in asked.items()):
        return Changed([], [])
    has_other_times = any(getattr(row, name) != asked[name] for name in _TIMES)
    if (has_other_times or not row.message_id) and wanted.origin != Schedule.Origin.CODE:
        check_times(wanted, from_ms(database.now_ms()))
        _check_count(database, row, wanted)
    for name, value in asked.items():
        setattr(row, name, value)
    gone_at, row.gone_at = row.gone_at, None
    if row.paused_at:
        _paused_of(database, row).update(error=WITHDRAWN)  # it was put as the schedule was before
        if has_other_times and not _open_among(database, [row.message_id]):
            row.last_at, row.message_id = None, ""  # the new times begin when the pause ends
    alarms = [] if row.paused_at else _restart(database, row, gone_at, has_other_times=has_other_times)
    row.save(using=database.using)
    return Changed([row.name], alarms)


def check_times(wanted: NewSchedule, now: datetime) -> None:
    """Raise `ValueError`, naming the value and the fix, if nothing of a schedule ever runs after `now`.

    That of the code is none of them: what it says stays there after its end. A check warns of it (checks.py).
    """
    first = check_comes(wanted.rule, wanted.start, wanted.until, now)
    if wanted.window:
        replace(decode(wanted.window), from_ms=to_epoch_ms(first)).due_ms(wanted.name)  # raises if it never opens


def _check_count(database: Database, row: Schedule, wanted: NewSchedule) -> None:
    """Raise `ValueError` if as many occurrences as are wanted have been put, and none of them is still to end."""
    is_over = wanted.count is not None and row.put_count >= wanted.count
    if is_over and not _open_among(database, [row.message_id]):
        raise ValueError(
            f"count={wanted.count}: schedule {wanted.name!r} has already had {row.put_count}, so nothing more runs; "
            "give more, or remove it first."
        )


def columns_of(wanted: NewSchedule) -> dict[str, Any]:
    """Return the columns that say what is wanted. The others say how far a schedule has got."""
    return {
        "origin": wanted.origin,
        "key": wanted.header.key,
        "header": dumps(wanted.header).decode(),
        "data": wanted.body.decode(),
        "rule": wanted.rule.to_json(),
        "window": wanted.window,
        "start_at": _to_the_ms(wanted.start),
        "until_at": _to_the_ms(wanted.until),
        "most": wanted.count,
        "catch_up": wanted.catch_up,
        "overlap": wanted.overlap,
    }


def _to_the_ms(at: datetime | None) -> datetime | None:
    return None if at is None else from_ms(to_epoch_ms(at))


def _restart(
    database: Database, row: Schedule, stopped_at: datetime | None = None, *, has_other_times: bool = False
) -> list[Alarm]:
    """Put the next occurrence from now on, in place of those that wait for their time.

    At `stopped_at` what waited was withdrawn, because the schedule was paused or gone; None if it was not.

    One that is overdue, runs, or waits for a retry or after a snooze stays, and its end puts the next, so that
    `catch_up` and `overlap` hold. One whose time is past, but waits for a window or was rescheduled, is put again. One
    that is to come may have moved over `start` or `until` with its zone: it stays one if the schedule's times do. Then
    no earlier one is put, either.
    """
    now = from_ms(database.now_ms())
    last_id, row.error = row.message_id, ""
    covered = _covered(row) if row.last_at else None
    waiting = _put_by_rule(database, row, due_at__gt=now, due_at=F("scheduled_at"))
    cancelled = _cancel(database, row, {id: at for id, at in waiting.items() if covered and at <= covered}, now)
    if row.overlap != "allow" and _open_among(database, [last_id]):
        row.look_at = now
        return []
    if covered and last_id in cancelled:
        if row.last_at <= now:
            row.put_count = max(row.put_count - 1, 0)
        if covered <= now:
            return _enqueued(database, [_put(row, covered)])
    after, start, kept = now, row.start_at, None
    if covered and not has_other_times:  # clocks that were put back must not bring earlier local times again
        was_to_come = stopped_at is not None and row.last_at > stopped_at
        was_overdue = stopped_at is not None and not was_to_come and _was_withdrawn(database, last_id)
        if was_overdue and covered > now:  # it still counts
            row.put_count = max(row.put_count - 1, 0)
        kept = covered if last_id in cancelled or was_to_come or was_overdue else None
        after = max(now, covered - _MOMENT if kept else covered)
        start = min(start, kept) if start and kept else start
    for at in to_come(rule_of(row.rule), after, start, None, None):
        if at != kept and _is_past_end(row, at):
            break
        if not _has_ended(database, {id_of(row, at), in_form_of(last_id, row.name, at)}):
            return _enqueued(database, [_put(row, at)])
    row.look_at = None
    return []


def _was_withdrawn(database: Database, id: str) -> bool:
    ended = FinishMessage.objects.using(database.using).filter(alias=database.alias, message_id=id)
    return ended.filter(error__in=[WITHDRAWN, PAUSED]).exists()


def _has_ended(database: Database, ids: Collection[str]) -> bool:
    """Return whether an occurrence has run before its time, or was cancelled by somebody: then it is not put again."""
    failed = ErrorMessage.objects.using(database.using).filter(alias=database.alias, message_id__in=ids)
    ended = FinishMessage.objects.using(database.using).filter(alias=database.alias, message_id__in=ids)
    return failed.exists() or ended.exclude(error__in=[WITHDRAWN, PAUSED]).exists()


# Occurrences that a change of the time-zone database has moved


@in_transaction
def correct(database: Database, corrections: Sequence[rules.Correction]) -> tuple[set[str], list[Alarm]]:
    """Correct due times like `rules.correct`, and note in the schedules where their last occurrences are now.

    With `catch_up="none"` an occurrence whose new time is past expires there.
    """
    by_name: dict[str, dict[str, rules.Correction]] = {}
    for each in corrections:
        if (name := schedule_of(each.id)) is not None:
            by_name.setdefault(name, {})[each.id] = each
    rows = list(_locked(database).filter(name__in=by_name)) if by_name else []
    moved, alarms = rules.correct(database, corrections)
    changed: list[Schedule] = []
    for row in rows:
        of_row = {id: each for id, each in by_name[row.name].items() if id in moved}
        if row.catch_up == "none":
            _expire_past(database, of_row.values())
        if row.last_at is not None and row.message_id in of_row:
            row.last_at = _covered(row)
            row.look_at = row.look_at and _look_at(row, from_ms(of_row[row.message_id].new_ms))
            changed.append(row)
    Schedule.objects.using(database.using).bulk_update(changed, ["last_at", "look_at"])
    return moved, alarms


def _expire_past(database: Database, corrections: Iterable[rules.Correction]) -> None:
    now_ms = database.now_ms()
    for each in corrections:
        if each.new_ms <= now_ms:
            row = ReadyMessage.objects.using(database.using).filter(pk=each.pk, token=None)
            at = from_ms(each.new_ms)
            row.update(expires_at=at + GRACE, scheduled_at=at)  # it expires so long after that, also if it moves again


def look_again(database: Database, zone: str) -> None:
    """Have maintenance look now at the schedules whose rules are in a zone: what comes next may come earlier."""
    now = from_ms(database.now_ms())
    rows_of(database).filter(look_at__gt=now, rule__contains=f'"zone":"{zone}"').update(look_at=now)


def _is_at_its_time(database: Database, row: Schedule, message: FinishMessage, own: NewMessage) -> bool:
    """Return whether a message of the last occurrence was due when its schedule put it.

    `own` is what the schedule would put for the occurrence now.
    """
    rule, given_ms = rules.read(database, [message.pk]).get(message.pk, ("", to_epoch_ms(row.last_at)))
    return rule == own.rule and is_due_by(given_ms, to_epoch_ms(message.due_at), to_epoch_ms(message.sent_at))


@_writing
def pause(database: Database, names: Collection[str], reason: str) -> Changed:
    """Pause schedules that are not paused yet: cancel what waits of them, and put no more."""
    rows = list(_locked(database).filter(name__in=names, paused_at__isnull=True))
    now = from_ms(database.now_ms())
    for row in rows:
        row.paused_at, row.reason, row.look_at = now, reason, None
    return _stop(database, rows, now, ["paused_at", "reason", "look_at"], PAUSED)


@_writing
def resume(database: Database, names: Collection[str]) -> Changed:
    """End pauses, and put the next occurrences from now on: those that fell due meanwhile are left out.

    One that was to come later than its own time, because of its window or a reschedule, is put for that time.
    """
    rows = list(_locked(database).filter(name__in=names, paused_at__isnull=False))
    alarms: list[Alarm] = []
    for row in rows:
        if row.gone_at is None:
            alarms += _put_back(database, row)
        row.paused_at, row.reason = None, ""
        row.save(using=database.using)
    return Changed([row.name for row in rows], alarms)


def _put_back(database: Database, row: Schedule) -> list[Alarm]:
    """Put what the pause has withdrawn for the time at which it was due; if that is past, or another, do `_restart`.

    Its own time is where its local time is now.
    """
    rule_of(row.rule)  # raises for one with which nothing would follow
    id, now = row.message_id, from_ms(database.now_ms())
    withdrawn = _paused_of(database, row).order_by("-ended_at").first()
    if withdrawn is None or row.last_at is None or row.overlap == "allow":
        return _restart(database, row, row.paused_at)
    at = _covered(row)
    own = message_of(row, at)
    is_moved = not _is_at_its_time(database, row, withdrawn, own)
    due_ms = to_epoch_ms(withdrawn.due_at) if is_moved else own.at_ms or 0
    if due_ms <= to_epoch_ms(now) or _open_among(database, [id]) or _has_ended(database, [id]):  # it ran meanwhile
        return _restart(database, row, row.paused_at)
    counted, still_counts = row.put_count, row.paused_at is not None and row.last_at <= row.paused_at
    message = _put(row, at)
    if still_counts:
        row.put_count = counted
    alarms = _enqueued(database, [message])
    return reschedule(database, [message.id], 0, due_ms)[1] if is_moved else alarms


def _paused_of(database: Database, row: Schedule) -> QuerySet[FinishMessage]:
    """Return the last message of a schedule if a pause has withdrawn it, each time that one has."""
    rows = FinishMessage.objects.using(database.using)
    return rows.filter(alias=database.alias, message_id=row.message_id, error=PAUSED)


@_writing
def note_gone(database: Database, in_code: Collection[str]) -> Changed:
    """Note as gone the schedules from code whose names are not `in_code`, and cancel what waits of them."""
    of_code = _locked(database).filter(origin=Schedule.Origin.CODE, gone_at__isnull=True)
    rows = list(of_code.exclude(name__in=in_code))
    if not rows:
        return Changed([], [])
    now = from_ms(database.now_ms())
    for row in rows:
        row.gone_at, row.look_at = now, None
    return _stop(database, rows, now, ["gone_at", "look_at"], WITHDRAWN)


@_writing
def remove(database: Database, names: Collection[str]) -> Changed:
    """Remove schedules, and cancel what waits of them."""
    rows = list(_locked(database).filter(name__in=names))
    now = from_ms(database.now_ms())
    for row in rows:
        _cancel(database, row, _waiting_of(database, row.name), now)
    for page in pages([row.pk for row in rows], BATCH):
        Schedule.objects.using(database.using).filter(pk__in=page).delete()
    return Changed([row.name for row in rows], [])


def _stop(database: Database, rows: Sequence[Schedule], now: datetime, changed: Sequence[str], error: str) -> Changed:
    for row in rows:
        _cancel(database, row, _put_by_rule(database, row), now, error)
    if rows:
        Schedule.objects.using(database.using).bulk_update(rows, [*changed, "put_count"], batch_size=PAGE)
    return Changed([row.name for row in rows], [])


def _cancel(
    database: Database, row: Schedule, waiting: Mapping[str, datetime], now: datetime, error: str = WITHDRAWN
) -> set[str]:
    """Cancel occurrences of a schedule, and return the ids of those that waited.

    Those that were put and still to come count no more.
    """
    cancelled: set[str] = set()
    for page in pages(list(waiting), BATCH):
        free = ReadyMessage.objects.using(database.using).filter(alias=database.alias, message_id__in=page, token=None)
        free.update(error=error)
        cancelled |= cancel(database, page)
    never_came = 0
    if row.last_at is not None:
        last, put_for = max(row.last_at, _covered(row)), {**waiting, row.message_id: row.last_at}
        never_came = sum(now < put_for[id] <= last for id in cancelled)
    row.put_count = max(row.put_count - never_came, 0)
    return cancelled


def _put_by_rule(database: Database, row: Schedule, **found: Any) -> dict[str, datetime]:
    """Return what waits of a schedule, without what was run now or backfilled if the rule puts one at a time.

    `found` is an ORM's filter of the messages.
    """
    waiting = _waiting_of(database, row.name, **found)
    return waiting if row.overlap == "allow" else {id: at for id, at in waiting.items() if id == row.message_id}


def _waiting_of(database: Database, name: str, **found: Any) -> dict[str, datetime]:
    """Return the ids of the occurrences of a schedule that wait, each with its occurrence.

    One in a zone that is unknown here is as if it was long past.
    """
    rows = ReadyMessage.objects.using(database.using).filter(
        alias=database.alias, message_id__startswith=f"{name}@", token=None, **found
    )
    ids = [id for id in rows.values_list("message_id", flat=True) if schedule_of(id) == name]
    return {id: occurrence[1] if (occurrence := occurrence_of(id)) else EPOCH for id in ids}


# Single occurrences


@_writing
def run_now(database: Database, name: str) -> Changed:
    """Enqueue a message that is due now and has this second as its occurrence. The rule goes on as before."""
    row = rows_of(database).filter(name=name).first()
    if row is None:
        return Changed([], [])
    at = from_ms(database.now_ms() // 1000 * 1000)
    id = occurrence_id(row.name, at, None)  # whatever the rule, this is no local time of it
    message = _message(row, id, at, DueRule())
    return Changed([message.id], _enqueued(database, [message]))


@_writing
def backfill(database: Database, name: str, occurrences: Sequence[datetime]) -> Changed:
    """Enqueue a message for each of these occurrences, which if past is due now. An id that waits or runs is kept.

    Each is due at its own time, whatever the window.
    """
    row = rows_of(database).filter(name=name).first()
    messages = [] if row is None else [_message(row, id_of(row, at), at, DueRule()) for at in occurrences]
    return Changed([message.id for message in messages], _enqueued(database, messages))


def rows_of(database: Database) -> QuerySet[Schedule]:
    """Return the schedules of the alias by name."""
    return Schedule.objects.using(database.using).filter(alias=database.alias).order_by("name")


def with_due_times(rows: QuerySet[Schedule]) -> QuerySet[Schedule]:
    """Add to each schedule `message_due_at`: when its last message is due, None if that does not wait."""
    waiting = ReadyMessage.objects.filter(alias=OuterRef("alias"), message_id=OuterRef("message_id"), token=None)
    return rows.annotate(message_due_at=Subquery(waiting.values("due_at")))


def _locked(database: Database) -> QuerySet[Schedule]:
    return rows_of(database).select_for_update()


def _open_among(database: Database, ids: Collection[str]) -> frozenset[str]:
    """Return those of the ids under which a message waits or runs."""
    rows = ReadyMessage.objects.using(database.using).filter(alias=database.alias, message_id__in=ids)
    return frozenset(rows.values_list("message_id", flat=True))
