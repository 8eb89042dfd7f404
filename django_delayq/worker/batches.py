"""A batch of messages in a child process, as its parent knows it."""

from collections import deque
from collections.abc import Callable, Sequence

from django_delayq.brokers.base import Settlement
from django_delayq.worker.frames import Answer, Handed
from django_delayq.worker.lanes import Lane, Lease
from django_delayq.worker.turns import Turns


class Batch:
    """Leases of one lane that a child runs in this order. Of those left the first runs; the others have not started."""

    def __init__(self, lane: Lane, leases: Sequence[Lease], turns: Turns) -> None:
        self.left = deque(leases)
        self.ended = 0
        self._lane = lane
        self._turns = turns
        self._stop: Callable[[], None]

    def handed(self) -> list[Handed]:
        """What to tell the child of them."""
        return [Handed(lease.claimed, lease.clock_ms) for lease in self.left]

    def held_until(self) -> float:
        """How long all of them are held."""
        return min(lease.held_until for lease in self.left)

    def begin(self, at: float, stop: Callable[[], None]) -> None:
        """The first starts. `stop` ends the child, when it must not run on."""
        self._stop = stop
        self._start_first(at)

    def note(self, answer: Answer) -> None:
        """What the child says."""
        if answer.settlement is not None:
            self.end_first(answer.settlement, answer.ended_at)
        if answer.unstarted:
            back = [self.left.pop() for _ in range(answer.unstarted)]
            self._turns.put_back(self._lane, back[::-1])
        if answer.settlement is not None and self.left:
            self._start_first(answer.ended_at)

    def end_first(self, settlement: Settlement | None, at: float) -> None:
        """The first of those left has ended; None leaves its lease to lapse."""
        lease = self.left.popleft()
        lease.abandon = None
        self.ended += 1
        self._turns.end(lease, settlement, at)

    def put_back(self) -> None:
        """Let other hands run what is left."""
        self._turns.put_back(self._lane, list(self.left))
        self.left.clear()

    def release(self) -> None:
        """Give back what is left, as if it had never come."""
        for lease in self.left:
            lease.abandon = None
        self._turns.release(list(self.left))
        self.left.clear()

    def _start_first(self, at: float) -> None:
        lease = self.left[0]
        lease.started_at = at
        lease.abandon = self._stop
        if not lease.is_held():  # given up before there was something to stop
            self._stop()
