"""The time that the tests of a site move: the memory broker's, or that of a store's rows, which are made older."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

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
from django_delayq.testing.broker import LEASE_MS, RUN_DUE, VIRTUAL_TIME_BROKER, AnyHandler, Due, VirtualTimeBroker


class AgedRows:
    """The time of an alias with a store.

    Everything happens on the calling thread's connection and in its transaction, so no commit is needed. The database's
    clock is authoritative, and can't be moved. So a leap lowers every instant of the alias's rows. The timer that holds
    their alarms, `clock`, makes the same leap, and is never asked what is due.

    The database's clock doesn't stand still, and due times are rounded up to its next millisecond. So a leap may be
    1 ms longer than the delay that was asked for, and then counts for 1 ms less.
    """

    def __init__(self, queue: Tables, clock: VirtualTimeBroker) -> None:
        self._queue = queue
        self._clock = clock

    @property
    def now_ms(self) -> int:
        """Return the time that the instants of rows are compared with."""
        return int(self._queue.database.now_ms())

    @property
    def moved_ms(self) -> int:
        """Return now plus all leaps, in epoch milliseconds."""
        return self.now_ms + self._clock.ahead_ms

    def stopped(self) -> AbstractContextManager[None]:
        """Stop the timer's clock, the only one that can be stopped: rows get older during the block."""
        return self._clock.stopped()

    def leap(self, by_ms: int) -> None:
        """Make everything older."""
        database = self._queue.database
        for table in (ReadyMessage, FinishMessage, ErrorMessage):
            instants = [field.name for field in table._meta.fields if isinstance(field, InstantField)]
            rows = table._default_manager.using(database.using).filter(alias=database.alias)
            rows.update(**{name: F(name) - by_ms for name in instants})
            for pk, history in rows.exclude(history=NOTHING).values_list("pk", "history"):
                rows.filter(pk=pk).update(history=moved(history, -by_ms))
        self._clock.leap(by_ms)

    def claim_next(self, handlers: Mapping[str, AnyHandler], within_ms: int) -> Due | None:
        """Leap to the time of the next message with a handler, and claim it; None if it is over `within_ms` away."""
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
        want = ClaimRequest(row.queue, row.key, 1)
        claimed = claim(database, [Alarm(row.queue, row.key, str(row.pk))], [want], LEASE_MS, RUN_DUE).messages
        if not claimed:
            raise RuntimeError(
                f"Message {row.message_id!r} is locked by a transaction of another thread: end it first."
            )
        return Due(claimed[0], handlers[row.key], counted_ms)

    def apply(self, transitions: Sequence[Transition]) -> None:
        """End leases."""
        self._queue.apply(transitions)


Timeline = VirtualTimeBroker | AgedRows


def timeline(using: str) -> Timeline:
    """Return the timeline of an alias. Raises `ImproperlyConfigured` if its time can't be moved."""
    backend = get_backend(using)
    clock = backend.store.broker if backend.store else backend
    if not isinstance(clock, VirtualTimeBroker):
        raise ImproperlyConfigured(
            f'DELAYQ["{using}"] is on {type(clock).__name__}, whose time can\'t be moved; use DelayqMixin, '
            f'the fixture delayq_memory or use_memory_broker(), or set "BROKER": "{VIRTUAL_TIME_BROKER}".'
        )
    return AgedRows(backend.store, clock) if backend.store else clock
