"""Offer a memory broker whose clock can be moved, and settings and a mixin that use it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from django.conf import settings
from django.test import override_settings

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import Claimed, ClaimRequest
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.conf import DEFAULT_ALIAS, Alias, alias_names

VIRTUAL_TIME_BROKER = "django_delayq.testing.VirtualTimeBroker"

NS = 1_000_000  # in a millisecond
LEASE_MS = 3_600_000
RUN_DUE = "run_due"
"""The worker's name in the leases that `run_due` claims."""

AnyHandler = Handler[Any, Any]


class Due(NamedTuple):
    """A claimed message with its handler, and how many ms of `run_due`'s `until` it took to reach its due time."""

    claimed: Claimed
    handler: AnyHandler
    leapt_ms: int


class VirtualTimeBroker(MemoryBroker):
    """A memory broker whose clock runs with the machine's and can leap ahead.

    It may be the `BROKER` in settings for tests.
    """

    def __init__(self, alias: Alias) -> None:
        self._ahead_ns = 0
        self._stopped_ns: int | None = None
        super().__init__(alias, lambda: self._now_ns() / NS)

    @property
    def now_ms(self) -> int:
        """Return the time of the moved clock in epoch milliseconds."""
        return self._now_ns() // NS

    moved_ms = now_ms

    @property
    def ahead_ms(self) -> int:
        """Return the sum of all leaps in ms."""
        return self._ahead_ns // NS

    def leap(self, by_ms: int) -> None:
        """Move the clock forward by `by_ms`."""
        self._ahead_ns += by_ms * NS
        self.queue.wake()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock in the block, except for leaps, so that due times are exact to the millisecond."""
        self._stopped_ns = time.time_ns()
        self._ahead_ns += -self._now_ns() % NS  # on to the next whole millisecond
        try:
            yield
        finally:
            self._stopped_ns = None

    def claim_next(self, handlers: Mapping[str, AnyHandler], within_ms: int) -> Due | None:
        """Leap to when the next message with a handler is due, and claim it.

        Return None if there is none within `within_ms`.
        """
        waiting = [found for found in self.queue.counts().waiting if found.key in handlers]
        due = [(found.next_due_ms, found.queue, found.key) for found in waiting if found.next_due_ms is not None]
        if not due:
            return None
        due_ms, queue, key = min(due)
        leap_ms = max(due_ms - self.now_ms, 0)
        if leap_ms > within_ms:
            return None
        self.leap(leap_ms)
        (claimed,) = self.queue.claim([ClaimRequest(queue, key, 1)], lease_ms=LEASE_MS, worker=RUN_DUE).messages
        return Due(claimed, handlers[key], leap_ms)

    def _now_ns(self) -> int:
        return self._ahead_ns + (time.time_ns() if self._stopped_ns is None else self._stopped_ns)


@contextmanager
def use_memory_broker() -> Iterator[None]:
    """Put every alias of DELAYQ on an empty memory broker with a clock that can be moved, for the block."""
    configured = getattr(settings, "DELAYQ", {DEFAULT_ALIAS: {}})
    in_memory = {name: {**configured[name], "BROKER": VIRTUAL_TIME_BROKER} for name in alias_names()}
    with override_settings(DELAYQ=in_memory):
        yield


if TYPE_CHECKING:
    from django.test import SimpleTestCase as _Base
else:
    _Base = object


class DelayqMixin(_Base):
    """A mixin for test cases, to be named before the base class: each test uses `use_memory_broker`.

    A `setUp` of your own must call `super().setUp()` first.
    """

    def setUp(self) -> None:
        self.enterContext(use_memory_broker())
        super().setUp()
