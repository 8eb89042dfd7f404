"""Move time in the tests of a site: the clock of the memory broker, or with a store the age of its rows."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from django.core.exceptions import ImproperlyConfigured
from django.db.models import F

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Alarm, ClaimRequest, Tables, Transition
from django_delayq.core.history import NOTHING, moved
from django_delayq.core.transitions import SUSPECT_CRASHES
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.models.fields import InstantField
from django_delayq.store.claim import claim
from django_delayq.support.timestamps import to_epoch_ms
from django_delayq.testing.broker import LEASE_MS, RUN_DUE, VIRTUAL_TIME_BROKER, AnyHandler, Due


@runtime_checkable
class MovableTime(Protocol):
    """A broker whose time tests can move, such as `VirtualTimeBroker`."""

    @property
    def now_ms(self) -> int: ...
    @property
    def moved_ms(self) -> int: ...
    @property
    def ahead_ms(self) -> int: ...
    def stopped(self) -> AbstractContextManager[None]: ...
    def leap(self, by_ms: int) -> None: ...
    def claim_next(self, handlers: Mapping[str, AnyHandler], within_ms: int) -> Due | None: ...
    def apply(self, transitions: Sequence[Transition]) -> object: ...


class AgedRows:
    """The timeline of an alias with a store.

    Everything happens on the calling thread's connection and in its transaction, so no commit is needed. The database's
    clock is authoritative and can't be moved. So a leap lowers every time in the alias's rows instead. The timer that
    holds their alarms makes the same leap, but is never asked what is due.

    The database's clock can't be stopped either, and due times are rounded up to its next millisecond. So a leap may be
    1 ms longer than the delay that was asked for, and is counted as 1 ms shorter.
    """

    def __init__(self, queue: Tables, timer: MovableTime) -> None:
        self._queue = queue
        self._timer = timer

    @property
    def now_ms(self) -> int:
        """Return the database's time, with which the times of rows are compared."""
        return int(self._queue.database.now_ms())

    @property
    def moved_ms(self) -> int:
        """Return now plus all leaps, in epoch milliseconds."""
        return self.now_ms + self._timer.ahead_ms

    def stopped(self) -> AbstractContextManager[None]:
        """Stop the timer's clock in the block. The database's clock can't be stopped, so rows get older meanwhile."""
        return self._timer.stopped()

    def leap(self, by_ms: int) -> None:
        """Make all rows and alarms older by `by_ms`."""
        database = self._queue.database
        for table in (ReadyMessage, FinishMessage, ErrorMessage):
            instants = [field.name for field in table._meta.fields if isinstance(field, InstantField)]
            rows = table._default_manager.using(database.using).filter(alias=database.alias)
            rows.update(**{name: F(name) - by_ms for name in instants})
            for pk, history in rows.exclude(history=NOTHING).values_list("pk", "history"):
                rows.filter(pk=pk).update(history=moved(history, -by_ms))
        self._timer.leap(by_ms)

    def claim_next(self, handlers: Mapping[str, AnyHandler], within_ms: int) -> Due | None:
        """Leap to when the next message with a handler is due, and claim it.

        Return None if there is none within `within_ms`.
        """
        database = self._queue.database
        rows = ReadyMessage.objects.using(database.using).filter(
            alias=database.alias, key__in=list(handlers), token=None, crashes__lt=SUSPECT_CRASHES
        )
        row = rows.order_by("due_at", "pk").first()
        if row is None:
            return None
        leap_ms = max(to_epoch_ms(row.due_at) - self.now_ms, 0)
        counted_ms = max(leap_ms - 1, 0)
        if counted_ms > within_ms:
            return None
        self.leap(leap_ms)
        request = ClaimRequest(row.queue, row.key, 1)
        claimed = claim(database, [Alarm(row.queue, row.key, str(row.pk))], [request], LEASE_MS, RUN_DUE).messages
        if not claimed:
            raise RuntimeError(
                f"Message {row.message_id!r} is locked by a transaction of another thread: end it first."
            )
        return Due(claimed[0], handlers[row.key], counted_ms)

    def apply(self, transitions: Sequence[Transition]) -> None:
        """End leases as the transitions say."""
        self._queue.apply(transitions)


Timeline = MovableTime | AgedRows


def timeline(using: str) -> Timeline:
    """Return the timeline of an alias. Raises `ImproperlyConfigured` if its time can't be moved."""
    backend = get_backend(using)
    broker = backend.store.broker if backend.store else backend
    if not isinstance(broker, MovableTime):
        raise ImproperlyConfigured(
            f'DELAYQ["{using}"] is on {type(broker).__name__}, whose time can\'t be moved; use DelayqMixin, '
            f'the fixture delayq_memory or use_memory_broker(), or set "BROKER": "{VIRTUAL_TIME_BROKER}".'
        )
    return AgedRows(backend.store, broker) if backend.store else broker
