"""The protocol of the hands that run handlers: threads, tasks of an event loop, child processes."""

from collections.abc import Callable, Sequence
from typing import Protocol

from django_delayq.brokers.base import Transition
from django_delayq.worker.prefetch import Lease, PrefetchBuffer

Run = Callable[[Lease], Transition | None]
"""Runs one message and says how its lease ends; None leaves the lease to lapse."""

Work = Callable[[PrefetchBuffer], tuple[int, float]]
"""A hand's turn in a lane: takes leases, runs their messages, ends them. Returns how many, and how long they ran."""


class Executor(Protocol):
    """The hands that run the messages of some lanes."""

    buffers: Sequence[PrefetchBuffer]

    @property
    def running(self) -> int:
        """Return how many messages run, or threads are in a lane."""

    @property
    def most(self) -> int:
        """Return how many hands there are, including those not started."""

    @property
    def free(self) -> int:
        """Return how many hands have no message waiting for them: as many more would start at once."""

    def want(self, buffer: PrefetchBuffer, most: int) -> int:
        """Return how many messages to claim now for a lane, which may have at most `most` hands."""

    def offer(self, buffer: PrefetchBuffer) -> None:
        """Tell the hands that leases were put into a lane."""

    def close(self, timeout: float) -> None:
        """End every hand as soon as it is idle; the idle ones have `timeout` seconds for it.

        A process must not exit beside them: what a library does then, such as closing a connection, may crash it.
        """
