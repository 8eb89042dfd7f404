"""What the tests of sending share."""

from collections.abc import Callable
from typing import Any, Self

from django.dispatch import Signal

from django_delayq.brokers.base import Info
from django_delayq.brokers.memory import MemoryBroker

NOW = 1_700_000_000_000
"""2023-11-14 22:13:20 UTC, in epoch milliseconds."""


class Noted(list[dict[str, Any]]):
    """What the receivers of a signal got while it is open."""

    def __init__(self, signal: Signal) -> None:
        self._signal = signal

    def _note(self, signal: Signal, **kwargs: Any) -> None:
        self.append(kwargs)

    def __enter__(self) -> Self:
        self._signal.connect(self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._signal.disconnect(self._note)


class Watch:
    """A monotonic clock that the test moves, in place of the `time` module."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def move_ms(self, milliseconds: float) -> None:
        self.now_ns += int(milliseconds * 1_000_000)


def waiting(broker: MemoryBroker, queue: str = "default") -> list[Info]:
    """Return what waits, in due order."""
    return broker.queue.peek(queue, 1_000)


def waiting_ids(broker: MemoryBroker) -> list[str]:
    return [info.id for info in waiting(broker)]


class Failing:
    """A backend whose queue fails from the `after`-th call on, as a broker that went away does."""

    def __init__(self, broker: MemoryBroker, error: Exception, after: int = 0) -> None:
        self._broker, self._error, self._calls_left = broker, error, after
        self.alias = broker.alias

    @property
    def queue(self) -> Self:
        return self

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._calls_left == 0:
                raise self._error
            self._calls_left -= 1
            return getattr(self._broker, verb)(*args, **kwargs)

        return call
