"""A memory broker whose time can be moved, and settings that use it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_delayq.brokers import get_broker
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.conf import DEFAULT_ALIAS, Alias, alias_names

_PATH = "django_delayq.testing.VirtualTimeBroker"

NS = 1_000_000  # in a millisecond


class VirtualTimeBroker(MemoryBroker):
    """A memory broker whose clock runs with the machine's and can leap ahead. As `BROKER` in settings for tests."""

    def __init__(self, alias: Alias) -> None:
        self._ahead_ns = 0
        self._stopped_ns: int | None = None
        super().__init__(alias, lambda: self._now_ns() / NS)

    @property
    def now_ms(self) -> int:
        """Epoch milliseconds of the moved clock."""
        return self._now_ns() // NS

    def leap(self, to_ms: int) -> None:
        """Move the clock on to `to_ms`; never back."""
        self._ahead_ns += max(0, to_ms * NS - self._now_ns())
        self.wake()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Time stands still within the block, but for leaps: what handlers send is due to the millisecond."""
        self._stopped_ns = time.time_ns()
        try:
            yield
        finally:
            self._stopped_ns = None

    def _now_ns(self) -> int:
        return self._ahead_ns + (time.time_ns() if self._stopped_ns is None else self._stopped_ns)


@contextmanager
def use_memory_broker() -> Iterator[None]:
    """Every alias of DELAYQ on an empty memory broker with virtual time, within the block."""
    configured = getattr(settings, "DELAYQ", {DEFAULT_ALIAS: {}})
    in_memory = {name: {**configured[name], "BROKER": _PATH} for name in alias_names()}
    with override_settings(DELAYQ=in_memory):
        yield


def virtual_time_broker(using: str) -> VirtualTimeBroker:
    """The alias's broker, or `ImproperlyConfigured` where time can't be moved."""
    broker = get_broker(using)
    if not isinstance(broker, VirtualTimeBroker):
        raise ImproperlyConfigured(
            f'DELAYQ["{using}"] is on {type(broker).__name__}, whose time can\'t be moved; use DelayqMixin, '
            f'the fixture delayq_memory or use_memory_broker(), or set "BROKER": "{_PATH}".'
        )
    return broker
