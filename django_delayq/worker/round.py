"""One round of claims, queue after queue: a later one gets the hands that those before it left."""

from collections.abc import Collection
from dataclasses import dataclass

from django_delayq.worker.hands import Hands
from django_delayq.worker.lanes import Lane


@dataclass(slots=True)
class _Given:
    """What a lane's claims of one round gave and left behind."""

    filled: bool = False
    left: bool = False
    once: bool = False


class Round:
    """Counts the hands that are taken. Hands that free meanwhile are for the next round, which begins at the top."""

    def __init__(self, lanes: Collection[tuple[Lane, Hands]]) -> None:
        self._free = {hands: hands.free for _, hands in lanes}
        self._spare = {lane: lane.concurrency - lane.active for lane, _ in lanes}
        self._pressed: set[Hands] = set()
        self._given: dict[Lane, _Given] = {}

    def want(self, lane: Lane, hands: Hands) -> int:
        """How many messages of the next queue to claim for a lane.

        None where a queue before it had enough for the lane, or is waiting for a hand: then nothing of a later queue
        is claimed ahead for hands that are busy, and the next that frees is for the earlier one.
        """
        wanted = hands.want(lane)
        given = self._given.get(lane)
        if (given and given.filled) or (hands in self._pressed and self._free[hands] <= 0):
            return 0
        return wanted

    def add(self, lane: Lane, hands: Hands, kept: int, *, filled: bool, left: bool, once: bool, presses: bool) -> None:
        """What a queue gave a lane that it was asked for. `presses`: what it has left comes before later queues."""
        given = self._given.setdefault(lane, _Given())
        given.filled |= filled
        given.left |= left
        given.once |= once
        self._free[hands] -= min(kept, self._spare[lane])
        if presses and self._spare[lane] > 0:  # else no hand that frees would be for it
            self._pressed.add(hands)

    @property
    def is_behind(self) -> bool:
        """Whether something due may be left behind."""
        return any(given.filled or given.left for given in self._given.values())

    def end(self) -> None:
        """Have each lane that was claimed for remember how that went."""
        for lane, given in self._given.items():
            lane.note_claim(filled=given.filled, left=given.left, once=given.once)
