"""A batch of messages in a child process, as its parent knows it."""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from time import monotonic

from django_delayq.core.transitions import Transition, with_history
from django_delayq.worker.frames import Assign, Job, Report
from django_delayq.worker.prefetch import TIME_SLICE_S as RUN_S, Lease, PrefetchBuffer
from django_delayq.worker.turns import Turns

SLOW_S = 3 * RUN_S
"""A batch that takes longer is slow: its leases that have not started are wanted back, for other hands."""
STAY_S = 5 * RUN_S
"""How long a hand stays in a lane at most while no other has work. Each time it comes, its child has to wait for it."""


class Batch:
    """Leases of one lane that a child runs in this order. The first of those `left` runs; the others have not started.

    `hands` is how many hands with a child there are.
    """

    def __init__(self, buffer: PrefetchBuffer, turns: Turns, hands: int) -> None:
        self.left: deque[Lease] = deque()
        self.ended = 0
        self.seconds = 0.0
        """How long the handlers of the messages that have ended ran."""
        self._lane = buffer
        self._turns = turns
        self._hands = hands
        self._low = 0
        self._slow_at: float | None = None
        self._stay_until = monotonic() + STAY_S
        self._stop: Callable[[], None]

    def fill(self, most: int) -> None:
        """Take the first leases: at most the hand's share of the lane, and at most `most`."""
        self.left.extend(self._turns.take_batch(self._lane, min(self._lane.fair_share(self._hands), most)))

    def refill(self) -> list[Lease]:
        """Take more leases when few are left, so that the child need not wait.

        It takes none once the hand has to leave.
        """
        now = monotonic()
        is_low = 1 < len(self.left) <= self._low + 1
        if not is_low or self._slow_at is None or now >= self._stay_until or now >= self.left[0].started_at + RUN_S:
            return []
        if not self._turns.may_stay(self._lane):
            return []
        more = self._turns.take_batch(self._lane, self._lane.fair_share(self._hands), is_alone=False)
        self.left.extend(more)
        return more

    def told(self, leases: Collection[Lease]) -> Assign:
        """Return the order to the child that is handed `leases`, which are some of its own."""
        self._low = len(leases) // 4
        self._slow_at = monotonic() + SLOW_S
        handed = [Job(replace(lease.claimed, history=""), lease.clock_ms) for lease in leases]  # frames stay small
        return Assign(self.held_until(), handed, self._low)

    def held_until(self) -> float:
        """Return until when all of them are held."""
        return min(lease.held_until for lease in self.left)

    def is_slow(self) -> bool:
        """Return whether to ask for the leases that have not started.

        True only once: a child whose handler holds the interpreter's lock can't answer.
        """
        if self._slow_at is None or len(self.left) < 2 or monotonic() < self._slow_at:
            return False
        self._slow_at = None
        return True

    def begin(self, at: float, stop: Callable[[], None]) -> None:
        """Note that the first starts. `stop` ends the child, when it must not run on."""
        self._stop = stop
        self._start_first(at)

    def note(self, answer: Report) -> None:
        """Take in what the child answers."""
        if answer.transition is not None:
            self.left[0].started_at = answer.started_at
            self.end_first(with_history(answer.transition, self.left[0].claimed), answer.ended_at)
        if answer.unstarted:
            back = [lease for lease in self.left if lease.claimed.id in answer.unstarted]
            for lease in back:  # the first of them was counted as started if the one before it had just ended
                lease.started_at, lease.abandon = 0.0, None
            self.left = deque(lease for lease in self.left if lease.claimed.id not in answer.unstarted)
            self._turns.put_back(self._lane, back)
        if answer.transition is not None and self.left:
            self._start_first(answer.ended_at)

    def end_first(self, transition: Transition | None, at: float) -> None:
        """End the first lease that is left; with None it is left to lapse."""
        lease = self.left.popleft()
        lease.abandon = None
        self.ended += 1
        self.seconds += at - lease.started_at
        self._turns.end(lease, transition, at)

    def put_back(self) -> None:
        """Let other hands run what is left."""
        self._turns.put_back(self._lane, list(self.left))
        self.left.clear()

    def release(self) -> None:
        """Give back what is left, as if it had never been claimed."""
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
