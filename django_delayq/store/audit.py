"""Audit a store: compare the tables with one another, with their tally, and with the timer's alarms.

A store counts no sends, because a shared counter would make every send wait for the others. So "sent" is the sum of
what was found. The audit checks that each row is in one table only, that the tally has only known names, that no lease
is longer than any that workers take, that the sequence of primary keys is not behind, and that each waiting row which
is due before the cursor has its alarm in time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django_delayq.brokers.base import BATCH, Alarm, AlarmIndex, AlarmInfo, Audit, Broker, Window, pages
from django_delayq.core.errors import BrokerUnavailable, ForeignMark
from django_delayq.core.requests import LEFT
from django_delayq.core.transitions import SUSPECT_CRASHES
from django_delayq.store.claim import is_pk
from django_delayq.store.database import Database
from django_delayq.store.mark import Mark
from django_delayq.store.queries import counts
from django_delayq.store.sql.dialect import LEASE_FREE, marks
from django_delayq.support.units import to_text

LATE_MS = 5_000
"""An alarm that comes more than this after its row is due counts as missing."""

LEASES = 10
"""A lease is too long if more than this many lease lengths are left of it: a worker's settings may have longer ones."""


@dataclass(frozen=True, slots=True)
class ScheduledRow:
    """A waiting row that is due before the cursor, and the alarm that the timer should have for it."""

    id: str
    alarm: Alarm

    @property
    def silence(self) -> str:
        """Return the audit's sentence about this row's missing or late alarm."""
        return f"message {self.id!r} is due before the cursor, and the broker has no alarm for it in time"


def audit(database: Database, broker: Broker, mark: Mark, lease_ms: int) -> Audit:
    """Return the figures and the differences.

    A row whose alarm seems to be missing is read twice, because the alarm may be on its way.
    """
    figures = counts(database)
    places = {
        "pending": sum(one.pending for one in figures.waiting),
        "ready": sum(one.ready for one in figures.waiting) + figures.suspects,
        "running": figures.running,
        "error": figures.error,
    }
    differences = [*_in_two_tables(database), *_wrong_tallies(database), *_held_too_long(database, lease_ms)]
    if found := _sequence_behind(database):
        differences.append(str(found))
    notes, window, index = [], broker.window, broker.alarm_index
    if window is not None and index is None:
        notes.append("this broker can't be asked for its alarms: only the tables were looked at")
    if window is None or index is None:  # without a window, rows are their own alarms
        return Audit(figures.totals, places, differences, notes)
    try:
        mark.check()
        differences += [silent.silence for silent in without_alarm(database, window, index)]
        stale = sum(_stale(database, index, {(one.queue, one.key) for one in index.counts().waiting}))
        if stale:
            notes.append(f"alarms of messages that are gone: {stale} (harmless); each is dropped when it is due")
    except (BrokerUnavailable, ForeignMark) as error:
        differences.append(f"the alarms can't be looked at: {error}")
    return Audit(figures.totals, places, differences, notes)


def repair(database: Database, broker: Broker, mark: Mark) -> list[str]:
    """Mend the differences that have one right answer: schedule missing alarms, move on a sequence that is behind.

    Return what was mended. A timer that can't be asked for its alarms, or bears another store's mark, is left to the
    sweep.
    """
    mended = mend_sequence(database)
    window, index = broker.window, broker.alarm_index
    try:
        mark.check()
    except ForeignMark:
        return mended
    if mended and window is not None:  # the alarms that are set have the old primary keys
        window.set_cursor_back(database.now_ms())
    if window is None or index is None:
        return mended
    found = list(without_alarm(database, window, index))
    for page in pages(found, BATCH):
        broker.timer.schedule([silent.alarm for silent in page])
    return mended + [f"{silent.silence}: it is put again" for silent in found]


def without_alarm(database: Database, window: Window, index: AlarmIndex) -> Iterator[ScheduledRow]:
    """Yield the rows due between now and the cursor that have no alarm in time. Only a sweep would find them."""
    cursor_ms, after_pk = window.cursor(), 0
    while cursor_ms is not None and (
        scheduled := _scheduled(database, cursor_ms, f"r.id > %s ORDER BY r.id LIMIT {BATCH}", [after_pk])
    ):
        after_pk = int(scheduled[-1].alarm.pk)
        seems = _silent(index, scheduled)
        if seems:
            # A row may have been claimed meanwhile, or its alarm be on its way: only what a second look confirms is a
            # difference.
            pks = [int(each.alarm.pk) for each in seems]
            again = _scheduled(database, cursor_ms, f"r.id IN ({marks(len(pks))}) ORDER BY r.id", pks)
            yield from _silent(index, again)


def _scheduled(database: Database, cursor_ms: int, condition: str, parameters: list[int]) -> list[ScheduledRow]:
    now = database.dialect.now
    rows = database.rows(
        f"SELECT r.id, r.message_id, r.queue, r.key, r.due_at - {now} FROM delayq_ready r WHERE r.alias = %s"
        f" AND {LEASE_FREE.format(now=now)} AND r.crashes < {SUSPECT_CRASHES}"
        f" AND r.due_at > {now} AND r.due_at <= %s AND {condition}",
        [database.alias, cursor_ms, *parameters],
    )
    return [ScheduledRow(id, Alarm(queue, key, str(pk), max(wait_ms, 0))) for pk, id, queue, key, wait_ms in rows]


def _silent(index: AlarmIndex, scheduled: list[ScheduledRow]) -> list[ScheduledRow]:
    """Return the rows that have no alarm in time."""
    silent = {alarm.pk for alarm in missing_alarms(index, [each.alarm for each in scheduled])}
    return [each for each in scheduled if each.alarm.pk in silent]


def missing_alarms(index: AlarmIndex, alarms: Sequence[Alarm]) -> list[Alarm]:
    """Return the alarms that the timer lacks, or would give over 5 s too late because its clock was set back.

    A claimed alarm is in time, because it comes again when its lease ends. After such a jump of the clock the timer's
    maintenance makes that lease shorter.
    """
    heard: set[tuple[str, str, str]] = set()
    for queue, key in dict.fromkeys((alarm.queue, alarm.key) for alarm in alarms):
        waits = {alarm.pk: alarm.wait_ms for alarm in alarms if (alarm.queue, alarm.key) == (queue, key)}
        found = index.find_alarms(queue, key, list(waits))
        heard.update((queue, key, each.pk) for each in found if _rings_within(each, waits[each.pk] + LATE_MS))
    return [alarm for alarm in alarms if (alarm.queue, alarm.key, alarm.pk) not in heard]


def _rings_within(alarm: AlarmInfo, ms: int) -> bool:
    if alarm.due_ms is None or alarm.now_ms is None or alarm.lease_end_ms is not None:
        return True
    return alarm.due_ms <= alarm.now_ms + ms


def _stale(database: Database, index: AlarmIndex, sets: Iterable[tuple[str, str]]) -> Iterator[int]:
    """Yield how many alarms of each page have no row. A cancel leaves its alarm behind, because it asks no broker."""
    for queue, key in sets:
        after = ""
        while True:
            alarms, after = index.alarms(queue, key, after=after)
            for page in pages([int(alarm.pk) for alarm in alarms if is_pk(alarm.pk)], BATCH):
                ((there,),) = database.rows(
                    f"SELECT count(*) FROM delayq_ready WHERE id IN ({marks(len(page))})", list(page)
                )
                yield len(page) - there
            if not after:
                break


def _in_two_tables(database: Database) -> list[str]:
    differences = []
    for one, other in (("ready", "finish"), ("ready", "error"), ("finish", "error")):
        twice = database.rows(
            f"SELECT one.id, one.message_id, other.message_id FROM delayq_{one} one"
            f" JOIN delayq_{other} other ON one.id = other.id WHERE one.alias = %s ORDER BY one.id LIMIT {BATCH}",
            [database.alias],
        )
        differences += [
            f"message {id!r} is in the tables {one} and {other}"
            if id == other_id
            else f"messages {id!r} in the table {one} and {other_id!r} in {other} have the primary key {pk}"
            for pk, id, other_id in twice
        ]
    return differences


def _wrong_tallies(database: Database) -> list[str]:
    rows = database.rows("SELECT name, count FROM delayq_tally WHERE alias = %s ORDER BY name", [database.alias])
    return [
        f"the tally has {number} {name!r}, which nothing writes"
        for name, number in rows
        if name not in LEFT or number < 0
    ]


def _held_too_long(database: Database, lease_ms: int) -> list[str]:
    now = database.dialect.now
    rows = database.rows(
        f"SELECT r.message_id, r.worker, r.lease_until - {now} FROM delayq_ready r"
        f" WHERE r.alias = %s AND r.lease_until > {now} + %s ORDER BY r.id LIMIT {BATCH}",
        [database.alias, LEASES * lease_ms],
    )
    return [
        f"message {id!r} is leased to {worker!r} for {to_text(left_ms)} more, though a lease is {to_text(lease_ms)}: "
        "nobody else runs it before"
        for id, worker, left_ms in rows
    ]


_SEQUENCE_ROOM = 10_000
"""How many primary keys others may take while the sequence is moved on: it must not go back."""


class SequenceBehind(NamedTuple):
    """A sequence whose next value is not above every primary key in use."""

    name: str
    next: int
    taken: int

    def __str__(self) -> str:
        return f"the sequence {self.name} is behind: it gives {self.next} next, and rows have up to {self.taken}"


def _sequence_behind(database: Database) -> SequenceBehind | None:
    """Return the sequence of primary keys if it is behind, and this user may look at it.

    On PostgreSQL it falls behind if rows are restored or replicated without it. New messages then get the primary keys
    of messages that have ended, and can't end themselves. Other databases have no such sequence.
    """
    if database.vendor != "postgresql":
        return None
    taken = ", ".join(f"(SELECT max(id) FROM delayq_{table})" for table in ("ready", "finish", "error"))
    found = database.rows(
        f"SELECT name, GREATEST(0, {taken}) FROM (SELECT pg_get_serial_sequence('delayq_ready', 'id')) AS of (name)"
        " WHERE has_sequence_privilege(name, 'SELECT')"
    )
    for name, highest in found:
        # Read last, because it moves on meanwhile
        ((next_pk,),) = database.rows(f"SELECT last_value + is_called::int FROM {name}")
        if next_pk <= highest:
            return SequenceBehind(name, next_pk, highest)
    return None


def mend_sequence(database: Database) -> list[str]:
    """Move the sequence on, and give a new primary key to waiting and failed messages that share one with an ended one.

    Leased rows keep theirs. A call after the end of their leases changes them too, although the sequence is not behind
    any more.
    """
    if database.vendor != "postgresql":
        return []
    found = _sequence_behind(database)
    if found:
        database.rows("SELECT setval(%s, %s)", [found.name, found.taken + _SEQUENCE_ROOM])
    waiting = _give_another(database, "ready", ["finish", "error"], "r.token IS NULL")
    failed = _give_another(database, "error", ["finish"])
    told = [f"{found}: it is moved on"] if found else []
    if found or waiting:
        told.append(f"{waiting} waiting message(s) got another primary key")
    if failed:
        told.append(f"{failed} failed message(s) got another primary key")
    return [", and ".join(told)] if told else []


def _give_another(database: Database, table: str, others: Sequence[str], condition: str = "true") -> int:
    """Give new primary keys to rows of a table that share theirs with another message in one of the other tables.

    Return how many rows got one.
    """
    taken = " OR ".join(
        f"EXISTS (SELECT 1 FROM delayq_{other} e WHERE e.id = r.id AND e.message_id <> r.message_id)"
        for other in others
    )
    return database.changed(
        f"UPDATE delayq_{table} r SET id = nextval(pg_get_serial_sequence('delayq_ready', 'id'))"
        f" WHERE r.alias = %s AND {condition} AND ({taken})",
        [database.alias],
    )
