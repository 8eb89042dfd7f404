"""Have messages sent again and again by a rule: write, pause and remove schedules, and read them back."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, TypedDict, Unpack

from django.db.models import QuerySet

from django_delayq.api.handlers import Handler, registered_handlers
from django_delayq.api.operations import readable
from django_delayq.api.send import addressed, prepare, rule_text
from django_delayq.api.unknown import SEND_OPTIONS, refuse_unknown
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend, NewMessage, Tables, pages
from django_delayq.conf import Alias
from django_delayq.core.codec import read
from django_delayq.core.errors import DelayqError, Unsupported
from django_delayq.core.human_time import Window, Windows, due_in_window_ms
from django_delayq.core.lanes import split_lane
from django_delayq.core.message import Send, Tags
from django_delayq.core.occurrences import check_schedule_name, instant_now, occurrence_id
from django_delayq.core.recurrence import (
    CatchUp,
    NewSchedule,
    Overlap,
    Rule,
    check_bounds,
    check_every,
    rule_of,
    to_come,
    within,
    zone_in,
)
from django_delayq.core.requests import BATCH, Header
from django_delayq.core.rules import Rule as DueRule, decode
from django_delayq.models import Schedule
from django_delayq.store import schedules
from django_delayq.store.database import Database
from django_delayq.support.logging import logger
from django_delayq.support.timestamps import check_aware, from_ms, to_epoch_ms
from django_delayq.support.units import Duration, to_ms
from django_delayq.support.validation import check_count, check_name, check_new_name, check_not_own

MOST_BACKFILLED = 100_000
"""The most occurrences of one backfill."""


class MessageOptions(TypedDict, total=False):
    """The options of `send_delay_message` that each message of a schedule has."""

    tag: Tags | None
    queue: str | None
    priority: int | None
    max_attempts: int | None
    expires: Duration | None
    timeout: Duration | None
    at_most_once: bool | None
    window: Windows | None
    spread: Duration | None


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as it is now. Datetimes are in UTC.

    - `rule`: None if it can't be read; then `error` says why.
    - `window`, `spread`: those of its messages.
    - `last_at`: the occurrence that was put last, as the message `message_id`. It may be still to come.
    - `message_due_at`: when that message is due; None if it does not wait.
    - `so_far`: how many were put, including that one.
    - `paused_at`, `reason`: since when and why it is paused; None and "" if it is not.
    - `gone_at`: since when it is no longer in the code; None if it is, or did not come from there.
    - `is_over`: whether there is no occurrence after `last_at`.
    - `error`: why the next occurrence could not be found at the last try; "" if it could.
    """

    name: str
    origin: str
    key: str
    queue: str
    data: Any
    rule: Rule | None
    start: datetime | None
    until: datetime | None
    count: int | None
    catch_up: str
    overlap: str
    window: tuple[Window, ...]
    spread: timedelta
    last_at: datetime | None
    message_id: str
    message_due_at: datetime | None
    so_far: int
    paused_at: datetime | None
    reason: str
    gone_at: datetime | None
    is_over: bool
    error: str

    def next(self, count: int = 10) -> list[datetime]:
        """Return the occurrences after `last_at`, at most `count`, as the rule, `until` and `count` say.

        Those of a paused schedule may be past. Raises `TypeError` or `ValueError` for a `count` under 0.
        """
        check_count(count, "count", 0)
        if self.rule is None or self.last_at is None:
            return []
        left = None if self.count is None else max(self.count - self.so_far, 0)
        return list(islice(to_come(self.rule, self.last_at, self.start, self.until, left), count))

    def due_at(self, occurrence: datetime) -> datetime:
        """Return when the message of an occurrence is due by the window and the spread.

        Raises whatever a calendar of the site raises, and `ValueError` for one that is not there, or always closed, and
        for an occurrence without a time zone.
        """
        check_aware(occurrence, "occurrence")
        spread_ms, id = to_ms(self.spread, "spread"), occurrence_id(self.name, occurrence, zone_in(self.rule))
        return from_ms(due_in_window_ms(to_epoch_ms(occurrence), self.window or None, spread_ms, id))


def schedule_delay_message(
    key: str,
    data: Any = None,
    *,
    name: str,
    every: Rule,
    start: datetime | None = None,
    until: datetime | None = None,
    count: int | None = None,
    catch_up: CatchUp = "last",
    overlap: Overlap = "skip",
    using: str | None = None,
    **options: Unpack[MessageOptions],
) -> None:
    """Send a message with `data` to the handler of `key` again and again, as the rule `every` says.

    Each occurrence is a message with the id `<name>@<occurrence>`, such as
    `invoice:17@2026-11-30T18:00:00[Europe/Rome]`, or `ping@2026-11-30T17:00:00Z` where the rule has no zone. It is put
    when the one before it has ended, so the next one can always be seen, cancelled and rescheduled: then that
    occurrence alone is left out, or moved. `options` are options of `send_delay_message`.

    - `window`, `spread`: an occurrence at which the window is closed is due when that opens, and keeps its id.
    - `start`, `until`: no occurrence is before `start` or after `until`. Both are aware.
    - `count`: how many there are in all.
    - `catch_up`: which of the occurrences that nobody could put in time, because no worker ran, are put late: the
      `last`, `all` (the last 1,000 at most), or `none`. With `none` a message also expires a minute after its time.
    - `overlap`: what becomes of an occurrence while the one before it still runs or is retried. `skip` leaves it out,
      `after` lets it run afterwards, `allow` lets both run.

    A schedule that has this `name` is changed to this one, and keeps its pause. The next occurrence from now on is put
    in place of the one that waits; one that is overdue, runs, or waits for a retry stays as it is, and its end puts the
    next. If it is like this already, nothing changes. This is a part of the caller's transaction, like a send. Raises
    `Unsupported` without a store, `ValueError` if nothing of it ever runs, and like `send_delay_message`.
    """
    for option in options:
        if option not in MessageOptions.__annotations__:
            if option not in SEND_OPTIONS:
                refuse_unknown([option], MessageOptions.__annotations__)
            raise TypeError(f"{option}=... is no option of a schedule, whose rule says when; leave it out.")
    backend = get_backend(using)
    store = store_of(backend)
    wanted = new_schedule(
        backend.alias,
        name,
        Schedule.Origin.CALL,
        every,
        Send(key, data, **options),
        start=start,
        until=until,
        count=count,
        catch_up=catch_up,
        overlap=overlap,
    )
    save_schedule(store, wanted)


def new_schedule(
    alias: Alias,
    name: str,
    origin: str,
    every: Rule,
    send: Send,
    *,
    start: datetime | None = None,
    until: datetime | None = None,
    count: int | None = None,
    catch_up: CatchUp = "last",
    overlap: Overlap = "skip",
    paused: str = "",
) -> NewSchedule:
    """Return a schedule to write. Raises like `schedule_delay_message`."""
    check_not_own(check_new_name(name, "name"), "name")
    # A worker may not have written it yet, so its row does not tell.
    if origin != Schedule.Origin.CODE and any(handler.key == name for handler in _recurring(alias.name)):
        raise schedules.is_of_code(name)
    check_schedule_name(name, "name")
    if every is None:
        raise TypeError("every=None is no rule; give Every(days=1, time='09:00', zone=...), Cron(...) or RRule(...).")
    check_every(every, catch_up, overlap)
    check_bounds(every, start, until, count)
    message = prepare(send, alias)
    return NewSchedule(
        name,
        origin,
        every,
        message.header,
        message.body,
        window=_window_text(alias, send),
        start=start,
        until=until,
        count=count,
        catch_up=catch_up,
        overlap=overlap,
        paused=paused,
    )


def _window_text(alias: Alias, send: Send) -> str:
    """Return the window and the spread of a schedule's messages as text. Raises `ValueError` if they have none."""
    _, handler = addressed(send, alias)
    window = handler.window if send.window is None and handler is not None else send.window
    if window is None and send.spread is None:
        return ""
    if text := rule_text(alias, 0, None, window, send.spread):
        return text
    raise ValueError("window=... has a calendar that can't be kept; give its name in CALENDARS, or dates.")


def save_schedule(store: Tables, wanted: NewSchedule) -> None:
    """Write a schedule that `new_schedule` returned, and put its next occurrence."""
    store.note_lanes([NewMessage(wanted.name, wanted.header, wanted.body)])
    store.change_schedules(partial(schedules.save, wanted=wanted))


def unschedule_delay_messages(*names: str, using: str | None = None) -> int:
    """Remove schedules by name, and cancel what waits of them. Return how many there were.

    A message that runs goes on. A schedule of the code comes back when a worker starts: remove its `every`, or pause
    it.
    """
    return len(_change(using, partial(schedules.remove, names=_checked(names))))


def pause_delay_schedules(*names: str, reason: str, using: str | None = None) -> int:
    """Pause schedules by name: what waits of them is cancelled, and no more is put.

    Return how many were not paused before. A new version of the code does not end a pause, and neither does
    `schedule_delay_message` with the same name.
    """
    reason = check_new_name(reason, "reason")
    return len(_change(using, partial(schedules.pause, names=_checked(names), reason=reason)))


def resume_delay_schedules(*names: str, using: str | None = None) -> int:
    """End the pause of schedules by name. What fell due meanwhile is left out. Return how many were paused."""
    return len(_change(using, partial(schedules.resume, names=_checked(names))))


def run_delay_schedule(name: str, *, using: str | None = None) -> str:
    """Put one more message of a schedule, due now, whatever its rule and its overlap say. Return the message's id.

    The rule goes on as before, and a pause stays. Two calls within a second put one message. Raises
    `DelayqError` if there is no such schedule.
    """
    for id in _change(using, partial(schedules.run_now, name=check_name(name, "name"))):
        return id
    raise _unknown(name, using)


def backfill_delay_schedule(name: str, *, start: datetime, until: datetime, using: str | None = None) -> int:
    """Put a message for each occurrence of a schedule from `start` to `until`, and return how many there are.

    None is before the schedule's `start`, nor after its `until`. Those that are past are due now. Each has the id of
    its occurrence, even if one with that id has ended before; one that waits or runs is left as it is. They may run at
    once, and they count neither for `overlap` nor for `count`.
    Raises `DelayqError` if there is no such schedule, and `ValueError` for a span that is backwards, and for over
    100,000 occurrences.
    """
    found = occurrences_to_backfill(name, start=start, until=until, using=using)
    for page in pages(found, BATCH):
        _change(using, partial(schedules.backfill, name=name, occurrences=page))
    return len(found)


def occurrences_to_backfill(name: str, *, start: datetime, until: datetime, using: str | None = None) -> list[datetime]:
    """Return the occurrences that `backfill_delay_schedule` puts. Raises like it."""
    if check_aware(start, "start") > check_aware(until, "until"):
        raise ValueError(f"until={until} is before start={start}; give a later one.")
    info = get_delay_schedule(name, using=using)
    if info is None or info.rule is None:
        raise _unknown(name, using) if info is None else DelayqError(f"Schedule {name!r}: {info.error}")
    found = within(info.rule, info.start, info.until, start, until, MOST_BACKFILLED + 1)
    if len(found) > MOST_BACKFILLED:
        raise ValueError(
            f"from {start} to {until} there are over {MOST_BACKFILLED:,} occurrences; give a shorter span."
        )
    return found


def get_delay_schedule(name: str, *, using: str | None = None) -> ScheduleInfo | None:
    """Return the schedule of this name, or None."""
    database = store_of(get_backend(using)).database
    with database.available(), database.telling_what_it_lacks():
        row = schedules.with_due_times(schedules.rows_of(database)).filter(name=check_name(name, "name")).first()
    return None if row is None else schedule_info(row)


def list_delay_schedules(
    *, key: str | None = None, name_prefix: str | None = None, using: str | None = None
) -> Iterator[ScheduleInfo]:
    """Yield schedules by name: those with this `key`, and with a name that begins with `name_prefix`, if given."""
    database = store_of(get_backend(using)).database
    rows = schedules.with_due_times(schedules.rows_of(database))
    if key is not None:
        rows = rows.filter(key=check_name(key, "key"))
    if name_prefix is not None:
        rows = rows.filter(name__startswith=check_name(name_prefix, "name_prefix"))
    return _infos(database, rows)


def _infos(database: Database, rows: QuerySet[Schedule]) -> Iterator[ScheduleInfo]:
    with database.available(), database.telling_what_it_lacks():
        yield from map(schedule_info, rows.iterator(BATCH))


def schedule_info(row: Schedule) -> ScheduleInfo:
    """Return what the row of a schedule says, which has its due time by `store.schedules.with_due_times`."""
    error = row.error
    rule, due = None, DueRule(0)
    try:
        rule = rule_of(row.rule)
        due = decode(row.window) if row.window else due
    except (TypeError, ValueError) as unreadable:  # a zone or an extra that this machine lacks
        error = str(unreadable)
    header = read(row.header, Header)
    queue, _ = split_lane(header.queue)
    return ScheduleInfo(
        name=row.name,
        origin=row.origin,
        key=row.key,
        queue=queue,
        data=readable(row.alias, row.key, row.data.encode(), header.version),
        rule=rule,
        start=row.start_at,
        until=row.until_at,
        count=row.most,
        catch_up=row.catch_up,
        overlap=row.overlap,
        window=due.windows,
        spread=timedelta(milliseconds=due.spread_ms),
        last_at=None if row.last_at is None else instant_now(row.message_id, row.last_at),
        message_id=row.message_id,
        message_due_at=row.message_due_at,  # type: ignore[attr-defined]  # an annotation
        so_far=row.put_count,
        paused_at=row.paused_at,
        reason=row.reason,
        gone_at=row.gone_at,
        is_over=row.look_at is None and row.paused_at is None and row.gone_at is None,
        error=error,
    )


def sync_delay_schedules(*, using: str | None = None) -> None:
    """Write the schedules of the code, those of handlers with `every`, as each worker does when it starts.

    One that is no longer in the code is noted as gone, and what waits of it is cancelled. If one can't be written, the
    others are, and then its error is raised.
    """
    backend = get_backend(using)
    recurring = _recurring(backend.alias.name)
    if backend.store is None and not recurring:
        return
    store = store_of(backend)
    with ExitStack() as saving:  # each, also where another one fails
        saving.callback(_note_gone, store, [handler.key for handler in recurring])
        for handler in recurring:
            saving.callback(_save_of_code, backend.alias, store, handler)


def _note_gone(store: Tables, in_code: list[str]) -> None:
    for name in store.change_schedules(partial(schedules.note_gone, in_code=in_code)):
        logger.info("Schedule %r is not in the code any more: nothing more of it runs.", name)


def _recurring(using: str) -> list[Handler[Any, Any]]:
    """Return the handlers of an alias that have `every`."""
    return [handler for handler in registered_handlers() if handler.using == using and handler.every is not None]


def _save_of_code(alias: Alias, store: Tables, handler: Handler[Any, Any]) -> None:
    assert handler.every is not None  # noqa: S101  - for the type checker
    try:
        wanted = new_schedule(
            alias,
            handler.key,
            Schedule.Origin.CODE,
            handler.every,
            Send(handler.key, spread=handler.spread),
            start=handler.start,
            until=handler.until,
            count=handler.count,
            catch_up=handler.catch_up,
            overlap=handler.overlap,
        )
        save_schedule(store, wanted)
    except (TypeError, ValueError) as error:
        raise DelayqError(f"Schedule {handler.key!r}: {error}") from error


def store_of(backend: Backend) -> Tables:
    """Return the store, which schedules need. Raises `Unsupported` without one."""
    if backend.store is None:
        raise Unsupported(
            f"Schedules need a store, which remembers them: set up STORE in DELAYQ[{backend.alias.name!r}]."
        )
    return backend.store


def _change(using: str | None, change: Callable[[Any], schedules.Changed]) -> list[str]:
    return store_of(get_backend(using)).change_schedules(change)


def _checked(names: tuple[str, ...]) -> list[str]:
    if not names:
        raise TypeError("there is no name; give the names of schedules, each as a str of its own: (*names).")
    return [check_name(name, "name") for name in names]


def _unknown(name: str, using: str | None) -> DelayqError:
    return DelayqError(f"There is no schedule {name!r} in alias {get_backend(using).alias.name!r}.")
