"""The part that all executors share: each owns the prefetch buffers of its handlers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from django_delayq.brokers.base import Transition
from django_delayq.core import transitions
from django_delayq.core.transitions import Span, is_at_most_once
from django_delayq.support.logging import logger
from django_delayq.worker import attempt
from django_delayq.worker.leases import Leases
from django_delayq.worker.plan import ExecutorState
from django_delayq.worker.prefetch import TIME_SLICE_S, Lease, PrefetchBuffer
from django_delayq.worker.settler import Settler

Run = Callable[[Lease], Transition | None]
"""Runs one message and says how its lease ends; None leaves the lease to lapse."""


class Executor(ABC):
    """The slots that run the messages of some handlers, and the buffers in which these wait.

    `wake` ends the loop's sleep: there is something to claim for a slot.
    """

    def __init__(
        self, buffers: Sequence[PrefetchBuffer], slots: int, leases: Leases, settler: Settler, wake: Callable[[], None]
    ) -> None:
        self.buffers = buffers
        self.slots = slots
        """How many messages run at once at most."""
        self._leases = leases
        self._settler = settler
        self._wake = wake

    @property
    @abstractmethod
    def running(self) -> int:
        """Return how many messages run, or threads work for a buffer."""

    @property
    @abstractmethod
    def idle(self) -> int:
        """Return how many slots have no message waiting for them: as many more would start at once."""

    @abstractmethod
    def state(self) -> ExecutorState:
        """Return a snapshot to plan a claim by.

        Until `PrefetchBuffer.note_claim`, a slot that frees wakes the loop for another claim.
        """

    @abstractmethod
    def offer(self, buffer: PrefetchBuffer) -> None:
        """Have slots start the leases that wait in a buffer, as soon as they are free."""

    @abstractmethod
    def close(self, timeout: float) -> None:
        """End every thread as soon as it is idle; the idle ones have `timeout` seconds for it.

        A process must not exit beside them: what a library does then, such as closing a connection, may crash it.
        """

    @property
    def is_busy(self) -> bool:
        """Return whether a message waits or runs here."""
        return any(buffer.leases or buffer.active for buffer in self.buffers)

    @property
    def has_run(self) -> bool:
        """Return whether a message has ended."""
        return any(buffer.ended for buffer in self.buffers)

    def add(self, buffer: PrefetchBuffer, leases: Sequence[Lease]) -> None:
        """Put leases into a buffer, and offer them to its slots."""
        if leases:
            buffer.added_at = monotonic()
            buffer.leases.extend(leases)
            self.offer(buffer)

    def release_unstarted(self, claimed_before: float) -> None:
        """Give back the leases that were claimed before then and that no slot has started."""
        unstarted = [lease for buffer in self.buffers for lease in _take_unstarted(buffer, claimed_before)]
        if unstarted:
            self._settler.release(unstarted)
            for buffer in self.buffers:
                buffer.note_stall()

    def release_paused(self, is_paused: Callable[[Lease], bool]) -> None:
        """Give back the leases of paused queues and keys that no slot has started."""
        for buffer in self.buffers:
            for lease in list(buffer.leases):
                if is_paused(lease):
                    with suppress(ValueError):  # a slot was faster
                        buffer.leases.remove(lease)
                        self._settler.release([lease])

    def _next(self, buffer: PrefetchBuffer) -> Lease | None:
        """Return the next lease of a buffer, None where nothing waits. Give back those that may not start any more.

        It costs each message little: no future, no lock, no hop; `deque.popleft` and `append` are atomic.
        """
        leases = buffer.leases
        while leases:
            try:
                lease = leases.popleft()
            except IndexError:  # another slot was faster
                break
            if len(leases) <= buffer.refill_at:
                buffer.refill_at = -1
                self._wake()
            if not lease.lost and lease.held_until > monotonic():
                return lease
            self._settler.release([lease])  # another worker's by now, unless none could ask
        return None

    def _end(self, lease: Lease, transition: Transition | None, ended_at: float) -> None:
        """Settle a lease by its transition; None leaves it to lapse."""
        lease.ended = True
        if transition is None:
            self._leases.remove([lease])
        else:
            self._settler.add(lease, transition, urgent=ended_at - lease.started_at >= TIME_SLICE_S)


def interrupted_settlement(lease: Lease, what: str) -> Transition | None:
    """Return the end of a lease whose handler was stopped, or told to stop, because it is not held any more.

    If nobody took the message meanwhile, it runs again soon, and nothing is counted. None where another worker took it,
    and where it must not start twice: then it lapses, and maintenance buries it.
    """
    claimed, handler = lease.claimed, lease.buffer.handler
    logger.warning(
        "Message %r (%s): %s, and %s.",
        claimed.id, handler.key, _why(lease), what,
        extra={"id": claimed.id, "key": handler.key, "token": claimed.token},
    )  # fmt: skip
    if lease.lost or is_at_most_once(claimed.header, handler):
        return None
    policy = attempt.policy_of(claimed, handler)
    return transitions.interrupt(claimed, policy, Span(lease.ms_of(lease.started_at)))


def _why(lease: Lease) -> str:
    if lease.interrupted:
        return "its worker stops"
    return "its lease was lost" if lease.lost else "its lease could not be renewed in time"


def _take_unstarted(buffer: PrefetchBuffer, claimed_before: float) -> list[Lease]:
    taken = []
    while buffer.leases:
        try:
            lease = buffer.leases.popleft()
        except IndexError:  # a slot was faster
            break
        if lease.claimed_at >= claimed_before:
            buffer.leases.appendleft(lease)
            break
        taken.append(lease)
    return taken
