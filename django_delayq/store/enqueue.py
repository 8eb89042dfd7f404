"""Send: insert rows in the caller's transaction, and schedule the alarms that are due soon right after its commit.

The due time is the database's clock plus the delay. For ids that are in use, `on_conflict` says what happens; one
statement does it for many of them. A send that is kept until a run ends is written into the row that runs, under its
lock: what ends the run sees it, or was committed before (kept.py). A message of `id_scope` "all" is not inserted if one
with its id has ended.

Alarms are scheduled after the commit because the cursor may be past them already (alarms.py). That is one bounded call.
If there are too many alarms for it, the cursor is set back, and the next pass schedules the rest. Messages that are due
later need no call. If the call fails, the sweep finds the rows.

The tags of a message after its first, and the rule of its due time, are rows of their own (tags.py, rules.py), inserted
in the same transaction.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from time import monotonic
from typing import Any, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from django_delayq.brokers.base import BATCH, Alarm, Broker, Enqueued, NewMessage, OnConflict, pages
from django_delayq.core import kept
from django_delayq.core.errors import PartlyUnavailable, SendError, Unsupported
from django_delayq.store import belongings, rules, tags
from django_delayq.store.alarms import SOON_MS
from django_delayq.store.database import Database
from django_delayq.store.mark import Mark
from django_delayq.store.sql.dialect import WAITING, Dialect, LongText
from django_delayq.store.sql.stepwise import delete
from django_delayq.support.commit_hooks import last_hook
from django_delayq.support.logging import logger

TRIES = 5
"""How often an insert is tried at most: an id may be in use at the INSERT, and free when its row is looked for."""


def enqueue(
    database: Database, messages: Sequence[NewMessage], on_conflict: OnConflict
) -> tuple[list[Enqueued], list[Alarm]]:
    """Insert messages, and do what `on_conflict` says for ids that are in use.

    Return the answers, and alarms to schedule.
    """
    enqueued: dict[int, Enqueued] = {}
    alarms: list[Alarm] = []
    todo = dict(enumerate(messages))
    while todo:  # first one message of each id, then the second of each id that is given twice, and so on
        first = {message.id: i for i, message in reversed(todo.items())}
        by_id = {todo[i].id: todo.pop(i) for i in sorted(first.values())}
        if any(message.id_scope == "all" for message in by_id.values()):
            enqueued_now, alarms_now = database.transaction(
                partial(_enqueue_unless_ended, database, by_id, on_conflict)
            )
        elif any(message.header.more_tags or message.rule for message in by_id.values()):
            enqueued_now, alarms_now = database.transaction(partial(_enqueue, database, by_id, on_conflict))
        else:
            enqueued_now, alarms_now = _enqueue(database, by_id, on_conflict)
        enqueued |= {first[id]: answer for id, answer in enqueued_now.items()}
        alarms += alarms_now
    return [enqueued[i] for i in range(len(messages))], alarms


def _enqueue(
    database: Database, messages: dict[str, NewMessage], on_conflict: OnConflict
) -> tuple[dict[str, Enqueued], list[Alarm]]:
    """Insert messages with different ids as `enqueue` does. `messages` and the answers are by id."""
    enqueued: dict[str, Enqueued] = {}
    alarms: list[Alarm] = []
    todo = list(messages.values())
    new_tags: list[tuple[int, str]] = []
    new_rules: list[rules.Kept] = []
    for _ in range(TRIES):
        for row in database.dialect.insert(database, todo):
            message = messages[row.id]
            header = message.header
            enqueued[row.id] = Enqueued(row.id, row.due_ms, created=True)
            alarms.append(Alarm(header.queue, header.key, str(row.pk), max(row.due_ms - row.now_ms, 0)))
            new_tags += [(row.pk, tag) for tag in header.more_tags]
            if message.rule and message.at_ms is not None:
                new_rules.append((row.pk, message.rule, message.at_ms))
        todo = [message for message in todo if message.id not in enqueued]
        if todo:
            settled, changed = _resolve_conflicts(database, todo, on_conflict)
            enqueued |= settled
            alarms += changed
            todo = [message for message in todo if message.id not in settled]
        if not todo:
            break
    if new_tags:
        tags.write(database, new_tags)
    if new_rules:
        rules.put(database, new_rules)
    if lost := [message.id for message in todo if message.while_running == "again"]:
        raise SendError(
            f"Ids that came and went {TRIES} times meanwhile: {lost}. Send them again.", unknown=tuple(lost)
        )
    # An id that comes and goes faster than we look counts as one in use.
    return enqueued | {message.id: Enqueued(message.id, 0, created=False) for message in todo}, alarms


_TIMES = {"of_id": str, "delay_ms": int, "at_ms": int}
_NEW = _TIMES | {
    "new_queue": str,
    "new_key": str,
    "new_data": LongText,
    "new_tag": str,
    "new_trace_id": str,
    "expires_ms": int,
    "new_max_attempts": int,
    "new_timeout_ms": int,
    "once": int,
    "max_wait_ms": int,
    "new_version": int,
    "new_share": str,
}


def _resolve_conflicts(
    database: Database, messages: Sequence[NewMessage], on_conflict: OnConflict
) -> tuple[dict[str, Enqueued], list[Alarm]]:
    """Do what `on_conflict` says for messages whose ids are in use. Return the answers by id, and alarms to schedule.

    The ids differ. Those that have become free meanwhile are left out.
    """
    again = [message for message in messages if message.while_running == "again"]
    until_end: dict[str, Enqueued] = {}
    if again:
        messages = [message for message in messages if message.while_running != "again"]
        changed, until_end = database.transaction(partial(_replace_or_keep, database, again))
        if messages:
            changed += database.transaction(partial(_replace, database, messages))
    elif on_conflict == "replace":
        changed = database.transaction(partial(_replace, database, messages))
    else:
        changed = _change(database, messages, on_conflict)
        _put_rules(database, messages, changed)
    alarms = [Alarm(queue, key, str(pk), max(wait_ms, 0)) for _, pk, queue, key, _, wait_ms, *_ in changed]
    enqueued = until_end | {id: Enqueued(id, due_ms, created=False) for id, _, _, _, due_ms, *_ in changed}
    return enqueued | _look(database, [message.id for message in messages if message.id not in enqueued]), alarms


def _replace(database: Database, messages: Sequence[NewMessage]) -> list[tuple[Any, ...]]:
    """Change the rows that wait under the ids, their tags and their rules. Return what `_change` returns.

    The tags are read after the UPDATE has locked the rows: another replacement may just have written some.
    """
    changed = _change(database, messages, "replace")
    more_tags = {message.id: message.header.more_tags for message in messages}
    belongings.remove(database, [pk for _, pk, *_ in changed])
    tags.write(database, [(pk, tag) for id, pk, *_ in changed for tag in more_tags[id]])
    _put_rules(database, messages, changed)
    return changed


def _replace_or_keep(
    database: Database, messages: Sequence[NewMessage]
) -> tuple[list[tuple[Any, ...]], dict[str, Enqueued]]:
    """Replace messages that wait, and keep the sends whose ids run until the runs end.

    Return what `_change` returns, and the answers for the others. The rows are locked first, so that none of them
    begins or ends to run meanwhile.
    """
    dialect = database.dialect
    database.begin_with_write()
    by_id = {message.id: message for message in messages}
    found = dialect.under_ids(database.alias, by_id, lock=dialect.lock)
    rows = database.rows(
        f"SELECT r.id, r.message_id, NOT ({WAITING}), r.again, {dialect.now}, {dialect.now_up} FROM {found.text}",
        found.parameters,
    )
    answers: dict[str, Enqueued] = {}
    for pk, id, runs, before, now_ms, now_up_ms in rows:
        if runs:
            message = by_id[id]
            at_ms = message.at_ms
            due_ms = now_up_ms + message.delay_ms if at_ms is None else max(now_ms, at_ms)
            newest = kept.keep(message, due_ms, now_ms, None if before is None else kept.decode(before))
            database.changed("UPDATE delayq_ready SET again = %s WHERE id = %s", [kept.encode(newest), pk])
            answers[id] = Enqueued(id, newest.due_ms, created=False, running=True, kept=True)
    waiting = [by_id[id] for _, id, runs, *_ in rows if not runs]
    return (_replace(database, waiting) if waiting else []), answers


def _put_rules(database: Database, messages: Sequence[NewMessage], changed: Sequence[tuple[Any, ...]]) -> None:
    """Keep the rules of messages that took the place of others, or gave them their due times."""
    by_id = {message.id: message for message in messages if message.rule}
    kept = [(pk, by_id[id].rule, by_id[id].at_ms or 0) for id, pk, *_ in changed if id in by_id]
    if kept:
        rules.put(database, kept)


def _look(database: Database, ids: Sequence[str]) -> dict[str, Enqueued]:
    if not ids:
        return {}
    found = database.dialect.under_ids(database.alias, ids, lock=database.dialect.newest)
    rows = database.rows(f"SELECT r.message_id, r.due_at, NOT ({WAITING}) FROM {found.text}", found.parameters)
    return {id: Enqueued(id, due_ms, created=False, running=bool(running)) for id, due_ms, running in rows}


def _change(database: Database, messages: Sequence[NewMessage], on_conflict: OnConflict) -> list[tuple[Any, ...]]:
    """Change the rows that wait under the ids. Return the id, pk, queue, key, due time and wait of each changed row."""
    if on_conflict in ("keep", "raise"):
        return []
    dialect = database.dialect
    due, last = _due(dialect), ""
    where = WAITING
    in_order = sorted(messages, key=attrgetter("id"))
    if on_conflict == "replace":
        if any(message.max_wait_ms is not None for message in messages):
            due = _bounded(dialect, due)
        columns, rows, changes = _NEW, [_new(message) for message in in_order], _replacement(due)
        last = (
            f", first_at = {_first(dialect)}, merged = coalesce(r.merged, 0) + 1, sent_at = {dialect.now},"
            " failures = 0, crashes = 0"
        )
    else:
        columns, rows = _TIMES, [(message.id, message.delay_ms, message.at_ms) for message in in_order]
        changes = f"expires_at = r.expires_at - r.scheduled_at + {due}"
        where += f" AND {due} {'<' if on_conflict == 'earliest' else '>'} r.due_at"
    return database.dialect.change_values(
        database,
        f"{changes}, due_at = {due}, scheduled_at = {due}{last}",
        database.dialect.values_table("input", columns, rows),
        where,
        f'message_id, id, queue, "key", due_at, due_at - {dialect.now}{database.noticed(len(messages))}',
    )


def _due(dialect: Dialect) -> str:
    """Return SQL for a new due time, by the clock of the statement."""
    at = f"{dialect.greatest}({dialect.now}, input.at_ms)"
    return f"(CASE WHEN input.at_ms IS NULL THEN {dialect.now_up} + input.delay_ms ELSE {at} END)"


def _first(dialect: Dialect) -> str:
    """Return SQL for when the first of the sends was that a message stands for: of those that no attempt was for."""
    return f"(CASE WHEN r.failures + r.crashes > 0 THEN {dialect.now} ELSE coalesce(r.first_at, r.sent_at) END)"


def _bounded(dialect: Dialect, due: str) -> str:
    """Return SQL for a due time of a message that replaces another: `bounded` in core/kept.py."""
    latest = f"{_first(dialect)} + input.max_wait_ms"
    return f"(CASE WHEN {due} > {latest} THEN {dialect.greatest}({dialect.now}, {latest}) ELSE {due} END)"


def _replacement(due: str) -> str:
    return (
        'queue = input.new_queue, "key" = input.new_key, data = input.new_data, tag = input.new_tag,'
        " trace_id = input.new_trace_id, max_attempts = input.new_max_attempts, timeout_ms = input.new_timeout_ms,"
        " at_most_once = (input.once = 1), version = input.new_version, share = input.new_share, error = '',"
        f" history = '[]', again = NULL, expires_at = {due} + input.expires_ms"
    )


def _new(message: NewMessage) -> tuple[Any, ...]:
    """Return the values of the columns `_NEW` for a message."""
    header = message.header
    times = message.id, message.delay_ms, message.at_ms
    names = header.queue, header.key, message.body.decode(), header.tag, header.trace_id
    options = header.expires_ms, header.max_attempts, header.timeout_ms, int(header.at_most_once)
    return *times, *names, *options, message.max_wait_ms, header.version, header.share


# Ids that are refused if a message has ended under them

_ENDED = ("delayq_finish", "delayq_error")


def insert_new(database: Database, messages: Sequence[NewMessage]) -> int:
    """Insert the messages whose id is in none of the three tables, in one transaction. Return how many."""
    new = [replace(message, id_scope="all") for message in messages]
    return database.transaction(
        lambda: sum(one.created for page in pages(new, BATCH) for one in enqueue(database, page, "keep")[0])
    )


def _enqueue_unless_ended(
    database: Database, messages: dict[str, NewMessage], on_conflict: OnConflict
) -> tuple[dict[str, Enqueued], list[Alarm]]:
    """Enqueue like `_enqueue`, except for messages of `id_scope` "all" under whose id one has ended.

    A message may end between a look at the tables of those that have ended and the INSERT: then its id is free in the
    ready table. So there is a second look after the INSERT, from which on no other message can have that id. If the
    second look finds one, the new row is deleted before anybody sees it. This must be one transaction.
    """
    once = [message.id for message in messages.values() if message.id_scope == "all"]
    _refuse_hiding_level(database)
    database.begin_with_write()
    ended = ended_under(database, once)
    not_ended = {id: message for id, message in messages.items() if id not in ended}
    if not not_ended:
        return ended, []
    enqueued, alarms = _enqueue(database, not_ended, on_conflict)
    created = [id for id in once if id in enqueued and enqueued[id].created]
    ended_meanwhile = ended_under(database, created, database.dialect.newest)
    if ended_meanwhile:
        taken_back = _take_back(database, ended_meanwhile)
        alarms = [alarm for alarm in alarms if alarm.pk not in taken_back]
    return enqueued | ended | ended_meanwhile, alarms


def _refuse_hiding_level(database: Database) -> None:
    """Raise `Unsupported` in a transaction whose isolation level would hide that a message has ended meanwhile."""
    asked = database.dialect.hiding_level
    for (level,) in database.rows(asked) if asked else []:
        raise Unsupported(
            f'id_scope="all" needs READ COMMITTED: at {level}, the isolation level of database {database.using!r}, '
            "a transaction can't see whether a message has ended since it began."
        )


def ended_under(database: Database, ids: Sequence[str], lock: str = "") -> dict[str, Enqueued]:
    """Return the answers for those of `ids` under which a message has ended, by id; of several, the last counts."""
    if not ids:
        return {}
    found = [database.dialect.under_ids(database.alias, ids, lock=lock, table=table) for table in _ENDED]
    rows = database.rows(
        " UNION ALL ".join(
            f"SELECT * FROM (SELECT r.ended_at, r.due_at, r.message_id FROM {one.text}) AS ended" for one in found
        ),
        [value for one in found for value in one.parameters],
    )
    return {id: Enqueued(id, due_ms, created=False, ended_ms=ended_ms) for ended_ms, due_ms, id in sorted(rows)}


def _take_back(database: Database, ids: Iterable[str]) -> set[str]:
    """Delete the rows that this transaction has inserted under the ids. Return their pks."""
    dialect = database.dialect
    # Without a lock MariaDB may show the row that has ended in place of the new one, at REPEATABLE READ.
    found = dialect.under_ids(database.alias, ids, lock=dialect.lock)
    pks = [pk for (pk,) in database.rows(f"SELECT r.id FROM {found.text}", found.parameters)]
    delete(database, pks)
    belongings.remove(database, pks)
    return {str(pk) for pk in pks}


WITHIN_S = 0.25
"""How long the calls after a commit may take, in seconds."""
SKIP_S = 5.0
"""How long this process leaves everything to the sweep after a failure: a hung broker must not slow every commit."""


class CommitNotifier:
    """The part that schedules alarms right after the commit that wrote their rows. It never raises."""

    def __init__(self, broker: Broker, now_ms: Callable[[], int], mark: Mark) -> None:
        self._timer = broker.timer
        self._window = broker.window
        self._mark = mark
        self._now_ms = now_ms
        self._skip_until = 0.0
        self._quiet_until = 0.0

    def schedule_after_commit(self, connection: BaseDatabaseWrapper, alarms: Sequence[Alarm], asked_at: float) -> None:
        """Schedule the `alarms` that are due soon once the connection's transaction commits; at once outside of one.

        Their waits count from `asked_at` (monotonic), when the statement that wrote the rows was sent: outside of a
        transaction its answer comes only after the commit, which waits for the disk.

        Django has no callback for the end of a transaction that is managed by hand: its alarms are left to the sweep.
        """
        if not alarms:
            return
        if not connection.in_atomic_block:
            if connection.get_autocommit():
                self.schedule(_due_soon(_timed(alarms, asked_at)))
            return
        # Most transactions have no hook before their one send
        hook = last_hook(connection, _Hook) if connection.run_on_commit else None
        if hook is None or hook.commit_notifier is not self:
            hook = _Hook(self)
            connection.on_commit(hook.after_commit, robust=True)
        hook.add(alarms, asked_at)

    def schedule(self, alarms: Sequence[Alarm], rest_wait_ms: int | None = None) -> None:
        """Schedule alarms, unless the last try failed a moment ago.

        `rest_wait_ms` is the wait of the earliest alarm that is left out; None if none is.
        """
        has_rest = rest_wait_ms is not None and rest_wait_ms <= SOON_MS
        if not (alarms or has_rest) or monotonic() < self._skip_until:
            return
        began_at = monotonic()
        try:
            self._mark.check(within_s=WITHIN_S)
            if rest_wait_ms is not None and has_rest and self._window is not None:
                self._window.set_cursor_back(self._now_ms() + rest_wait_ms - 1)
            if alarms:
                self._timer.schedule(alarms, within_s=WITHIN_S - (monotonic() - began_at))
        except PartlyUnavailable as error:  # the other parts of the broker are still told
            self._warn(alarms, error)
        except Exception as error:  # noqa: BLE001 - the rows are committed: the sweep finds them
            self._skip_until = monotonic() + SKIP_S
            self._warn(alarms, error)

    def _warn(self, alarms: Sequence[Alarm], error: Exception) -> None:
        """Log a warning, unless one was logged a moment ago."""
        if monotonic() >= self._quiet_until:
            self._quiet_until = monotonic() + SKIP_S
            logger.warning("The broker was not told of %d message(s); a sweep finds them. (%s)", len(alarms), error)


class _TimedAlarm(NamedTuple):
    """An alarm, and when it is due by the monotonic clock, in seconds."""

    due_at: float
    alarm: Alarm


class _Hook:
    """The earliest alarms that one transaction, or one savepoint of it, may have to schedule."""

    def __init__(self, commit_notifier: CommitNotifier) -> None:
        self.commit_notifier = commit_notifier
        self._alarms: list[_TimedAlarm] = []
        self._rest_due_at = math.inf

    def add(self, alarms: Sequence[Alarm], asked_at: float) -> None:
        """Take alarms of rows that the transaction wrote just now. Their waits count from `asked_at`."""
        self._alarms += _timed(alarms, asked_at)
        if len(self._alarms) > BATCH:
            self._alarms.sort(key=_due_at)
            self._rest_due_at = min(self._rest_due_at, self._alarms[BATCH].due_at)
            del self._alarms[BATCH:]

    def after_commit(self) -> None:
        """Schedule the alarms that are due soon, as an `on_commit` callback."""
        rest_wait_ms = None if self._rest_due_at == math.inf else _remaining_ms(self._rest_due_at, monotonic())
        self.commit_notifier.schedule(_due_soon(self._alarms), rest_wait_ms)


_due_at = attrgetter("due_at")


def _timed(alarms: Iterable[Alarm], asked_at: float) -> list[_TimedAlarm]:
    return [_TimedAlarm(asked_at + alarm.wait_ms / 1000, alarm) for alarm in alarms]


def _due_soon(timed: Iterable[_TimedAlarm]) -> list[Alarm]:
    """Return the alarms that are due soon, with their waits from now."""
    now = monotonic()
    latest = now + SOON_MS / 1000
    return [replace(each.alarm, wait_ms=_remaining_ms(each.due_at, now)) for each in timed if each.due_at <= latest]


def _remaining_ms(due_at: float, now: float) -> int:
    return max(math.ceil((due_at - now) * 1000), 0)
