"""Offer a memory broker for tests that goes by Python's clock, and a database whose statements go by it too."""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import Claimed, ClaimRequest
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.brokers.schedule import Schedule
from django_delayq.conf import Alias
from django_delayq.core.lanes import priority_of
from django_delayq.store.database import ClockMonitor, Database
from django_delayq.store.sql.dialect import Dialect
from django_delayq.testing.clock import now_us

LEASE_MS = 3_600_000
RUN_DUE = "run_due"
"""The worker's name in the leases that `run_due` claims."""

AnyHandler = Handler[Any, Any]


class Due(NamedTuple):
    """The message that is due next. `pk` is the primary key of its row; None without a store."""

    due_ms: int
    queue: str
    key: str
    pk: int | None = None


def first_of(waiting: Iterable[Due]) -> Due | None:
    """Return the one that runs first: of those that are due, one of the highest priority, or else the earliest."""
    now_ms = now_us() // 1000

    def rank(one: Due) -> tuple[bool, int, Due]:
        is_due = one.due_ms <= now_ms
        return not is_due, -priority_of(one.queue) if is_due else 0, one

    return min(waiting, key=rank, default=None)


class VirtualTimeDatabase(Database):
    """The database of an alias, with statements that go by Python's clock instead of the server's.

    So `delay` and `at` count from one clock, even while time-machine, freezegun or `run_due` moves it.
    """

    def __init__(self, alias: str, using: str) -> None:
        super().__init__(alias, using)
        self.clock_monitor = _NoMonitor(using)

    @property
    def dialect(self) -> Dialect:
        """Return the database's dialect with Python's current time in place of the server's."""
        dialect, time_us = copy(super().dialect), now_us()
        dialect.now, dialect.now_up = str(time_us // 1000), str(-(-time_us // 1000))
        return dialect


class _NoMonitor(ClockMonitor):
    """A monitor that notices no jumps, because tests let the clock jump."""

    def hear(self, now_ms: int, asked_at: float, lease_ms: int) -> int:
        return 0


class VirtualTimeBroker(MemoryBroker):
    """A memory broker that goes by Python's clock and can make its messages older.

    It may be the `BROKER` in settings for tests. With a store it is the timer, and makes the store use a
    `VirtualTimeDatabase`.
    """

    def __init__(self, alias: Alias) -> None:
        super().__init__(alias, lambda: now_us() / 1000)
        if alias.store is not None:
            self.database = VirtualTimeDatabase(alias.name, alias.database)
        self.aged_ms = 0
        """By how many ms messages have got older, in all."""

    def age(self, by_ms: int) -> None:
        """Make all messages and alarms older by `by_ms`."""
        self.aged_ms += by_ms
        with self._changed:
            places = self._places
            for entry in [*places.entries.values(), *(buried.entry for buried in places.buried.values())]:
                entry.due_ms -= by_ms
                entry.header.sent_ms -= by_ms
                entry.header.scheduled_ms -= by_ms
                if entry.first_ms is not None:
                    entry.first_ms -= by_ms
                if entry.again is not None:
                    again = entry.again
                    entry.again = replace(again, due_ms=again.due_ms - by_ms, first_ms=again.first_ms - by_ms)
            for buried in places.buried.values():
                buried.buried_ms -= by_ms
            for schedule in (places.suspects, places.running, *places.waiting.values(), *places.alarms.values()):
                _age(schedule, by_ms)
            _age(places.running_alarms, by_ms)
        self.wake()

    def next_due(self, handlers: Mapping[str, AnyHandler]) -> Due | None:
        """Return the message that is due next, among those that have a handler; None if no such message waits."""
        waiting = [found for found in self.queue.counts().waiting if found.key in handlers]
        due = [Due(found.next_due_ms, found.queue, found.key) for found in waiting if found.next_due_ms is not None]
        return first_of(due)

    def claim_one(self, due: Due) -> Claimed:
        """Lease the message that `next_due` returned. It must be due now."""
        (claimed,) = self.queue.claim([ClaimRequest(due.queue, due.key, 1)], lease_ms=LEASE_MS, worker=RUN_DUE).messages
        return claimed

    def next_look_ms(self) -> None:
        """Return None: without a store there are no schedules."""

    def put_occurrences(self) -> None:
        """Do nothing: without a store there are no schedules."""

    def end_batches(self) -> None:
        """Do nothing: without a store there are no batches."""


def _age(schedule: Schedule[Any], by_ms: int) -> None:
    for time_ms, name in list(schedule):
        schedule.put(name, time_ms - by_ms)
