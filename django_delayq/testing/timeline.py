"""Let time pass in a site's tests: Python's clock moves, or else messages get older."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol, runtime_checkable

from django.core.exceptions import ImproperlyConfigured
from django.db.models import F, Max, Min, QuerySet

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import (
    NO_PROGRESS,
    Alarm,
    CancelRequest,
    Claimed,
    ClaimRequest,
    LeaseId,
    Pair,
    Tables,
    Transition,
)
from django_delayq.core.history import NOTHING, moved
from django_delayq.core.shares import Shares, Turns
from django_delayq.core.transitions import SUSPECT_CRASHES
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.models.fields import InstantField
from django_delayq.store import batches, schedules
from django_delayq.store.claim import claim
from django_delayq.store.presence import read_lanes
from django_delayq.store.shares import weights_of
from django_delayq.support.timestamps import from_ms, to_epoch_ms
from django_delayq.testing import clock
from django_delayq.testing.broker import LEASE_MS, RUN_DUE, AnyHandler, Due, first_of

VIRTUAL_TIME_BROKER = "django_delayq.testing.VirtualTimeBroker"


@runtime_checkable
class Messages(Protocol):
    """The messages of an alias, as `run_due` takes them. A broker whose messages can get older offers this itself."""

    @property
    def aged_ms(self) -> int:
        """Return by how many ms the messages have got older, in all."""

    def age(self, by_ms: int) -> None:
        """Make all messages older by `by_ms`."""

    def next_due(self, handlers: Mapping[str, AnyHandler]) -> Due | None:
        """Return the message that is due next, among those that have a handler; None if no such message waits."""

    def claim_one(self, due: Due) -> Claimed:
        """Lease the message that `next_due` returned. It must be due now."""

    def apply(self, transitions: Sequence[Transition]) -> Sequence[bool | CancelRequest | None]:
        """End leases as the transitions say."""

    def renew(
        self, leases: Sequence[Claimed], lease_ms: int, progress: Mapping[LeaseId, str] = NO_PROGRESS
    ) -> Sequence[bool | CancelRequest | None]:
        """Renew leases, as a queue does."""

    def next_look_ms(self) -> int | None:
        """Return when upkeep puts the next occurrence of a schedule that no end of a message puts; None if never."""

    def put_occurrences(self) -> None:
        """Put the occurrences that upkeep would put now."""

    def end_batches(self) -> None:
        """Put what follows batches whose last member was cancelled, which upkeep would put within seconds."""


class Rows:
    """The messages of an alias with a store.

    Everything happens on the calling thread's connection and in its transaction, so no commit is needed. The alarms in
    the timer get older together with the rows, but the timer is never asked what is due.
    """

    def __init__(self, queue: Tables, timer: Messages) -> None:
        self._queue = queue
        self._timer = timer
        self._turns: dict[Pair, Turns] = {}

    @property
    def aged_ms(self) -> int:
        return self._timer.aged_ms

    def age(self, by_ms: int) -> None:
        """Lower every time in the alias's rows by `by_ms`."""
        database = self._queue.database
        for table in (ReadyMessage, FinishMessage, ErrorMessage):
            instants = [field.name for field in table._meta.fields if isinstance(field, InstantField)]
            rows = table._default_manager.using(database.using).filter(alias=database.alias)
            rows.update(**{name: F(name) - by_ms for name in instants})
            for pk, history in rows.exclude(history=NOTHING).values_list("pk", "history"):
                rows.filter(pk=pk).update(history=moved(history, -by_ms))
        self._timer.age(by_ms)

    def next_due(self, handlers: Mapping[str, AnyHandler]) -> Due | None:
        database = self._queue.database
        rows = ReadyMessage.objects.using(database.using).filter(
            alias=database.alias, key__in=list(handlers), token=None, crashes__lt=SUSPECT_CRASHES
        )
        lanes = read_lanes(database)
        parts = [rows.exclude(queue__in=lanes), *(rows.filter(queue=lane) for lane in lanes)]
        firsts = filter(None, [part.order_by("due_at", "pk").first() for part in parts])
        found = {Due(to_epoch_ms(row.due_at), row.queue, row.key, row.pk): row.share for row in firsts}
        due = first_of(found)
        if due is None or found[due] is None or (shares := handlers[due.key].shares) is None:
            return due
        return self._in_turn(due, rows.filter(queue=due.queue, key=due.key, due_at__lte=clock.now_ms()), shares)

    def _in_turn(self, due: Due, rows: QuerySet[ReadyMessage], shares: Shares) -> Due:
        """Take the next turn among the shares of `rows`, as a worker does. Return the first message of its share.

        `rows` are those that are due now. If there are none, return `due`, which comes next.
        """
        turns = self._turns.setdefault((due.queue, due.key), Turns(weights_of(shares)))
        last_of = rows.exclude(share=None).values_list("share").annotate(first=Min("due_at"), last=Max("due_at"))
        for share, _first, last_at in last_of.order_by("first", "share"):
            turns.add(share, to_epoch_ms(last_at))
        while len(turns):
            (planned,) = [*turns.plan(1).items()]
            row = rows.filter(share=planned[0]).order_by("due_at", "pk").first()
            if row is not None:
                return due._replace(due_ms=to_epoch_ms(row.due_at), pk=row.pk)
            turns.note(dict([planned]), {})
        return due

    def claim_one(self, due: Due) -> Claimed:
        alarm, request = Alarm(due.queue, due.key, str(due.pk)), ClaimRequest(due.queue, due.key, 1)
        claimed = claim(self._queue.database, [alarm], [request], LEASE_MS, RUN_DUE).messages
        if not claimed:
            raise RuntimeError(
                f"The message of row {due.pk} is locked by a transaction of another thread: end it first."
            )
        return claimed[0]

    def apply(self, transitions: Sequence[Transition]) -> Sequence[bool | CancelRequest | None]:
        return self._queue.apply(transitions)

    def renew(
        self, leases: Sequence[Claimed], lease_ms: int, progress: Mapping[LeaseId, str] = NO_PROGRESS
    ) -> Sequence[bool | CancelRequest | None]:
        return self._queue.renew(leases, lease_ms, progress)

    def next_look_ms(self) -> int | None:
        look_at = schedules.first_look(self._queue.database)
        return None if look_at is None else to_epoch_ms(look_at)

    def put_occurrences(self) -> None:
        self._queue.change_schedules(lambda database: ([], schedules.put_due(database)[0]))

    def end_batches(self) -> None:
        if batches.are_any(self._queue.database):
            self._queue.change_follow_ups(batches.end_unnoticed)

    def refuse_schedules(self, until_ms: int) -> None:
        """Raise `ImproperlyConfigured` if an occurrence lies within the next `until_ms`, as messages get older.

        Its messages get older, but its rule counts by the calendar, which stands still.
        """
        end = from_ms(clock.now_ms() + until_ms + self.aged_ms)
        row = schedules.rows_of(self._queue.database).filter(look_at__lte=end).first()
        if row is not None:
            raise ImproperlyConfigured(
                f"run_due() reaches the occurrence {row.message_id!r} of a schedule, whose times only a clock that "
                "moves can reach: install time-machine, and use DelayqMixin, the fixture delayq_memory or "
                "use_memory_broker(), or move the clock in the test with time_machine.travel()."
            )


def messages_of(using: str) -> Messages:
    """Return the messages of an alias. Raises `ImproperlyConfigured` if tests can't let time pass for them."""
    backend = get_backend(using)
    broker = backend.store.broker if backend.store else backend
    if not isinstance(broker, Messages):
        raise ImproperlyConfigured(
            f'DELAYQ["{using}"] is on {backend.alias.broker_name}, whose time can\'t be moved; use DelayqMixin, '
            f'the fixture delayq_memory or use_memory_broker(), or set "BROKER": "{VIRTUAL_TIME_BROKER}".'
        )
    return Rows(backend.store, broker) if backend.store else broker


class Passage:
    """The time that passes in one `run_due`.

    Due times are rounded up to whole milliseconds, which adds up in a chain of messages. So a leap counts 1 ms less
    than it took.
    """

    def __init__(self, leap: Callable[[int], None], until_ms: int) -> None:
        self._leap = leap
        self._until_ms = until_ms
        self._left_ms = until_ms
        self.passed_ms = 0
        """The sum of all leaps, in ms."""

    def reach(self, due_ms: int) -> bool:
        """Let time pass until `due_ms` and return True. If that is after the end, do nothing and return False."""
        leap_ms = max(due_ms - clock.now_ms(), 0)
        counted_ms = max(leap_ms - 1, 0)
        if counted_ms > self._left_ms:
            return False
        self._left_ms -= counted_ms
        self._pass(leap_ms)
        return True

    def end(self) -> None:
        """Let the rest of the time pass."""
        self._pass(max(self._until_ms - self.passed_ms, 0))

    def _pass(self, by_ms: int) -> None:
        if by_ms:
            self._leap(by_ms)
            self.passed_ms += by_ms


@contextmanager
def passing_time(messages: Messages, until_ms: int) -> Iterator[Passage]:
    """Yield the time that passes in one `run_due`: a library moves Python's clock, or else messages get older.

    Outside `use_memory_broker`, nothing would put back a clock that the test itself has not moved. So it is put back at
    the end of the block, and the messages get older by the time that passed. Where they get older, raises
    `ImproperlyConfigured` if an occurrence of a schedule lies within that time.
    """
    mover = clock.find_mover()
    if mover is not None and (mover.is_active() or clock.is_put_back()):
        yield Passage(partial(clock.leap, mover), until_ms)
        return
    if isinstance(messages, Rows):
        messages.refuse_schedules(until_ms)
    if mover is None:
        yield Passage(messages.age, until_ms)
        return
    passage = Passage(partial(clock.leap, mover), until_ms)
    try:
        with clock.put_back_at_end():
            yield passage
    finally:
        messages.age(passage.passed_ms)
