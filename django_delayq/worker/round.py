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
        self._lanes = lanes
        self._free = {hands: hands.free for _, hands in lanes}
        self._spare = {lane: lane.concurrency - lane.active for lane, _ in lanes}
        self._given: dict[Lane, _Given] = {}
        self._in_vain: set[tuple[Lane, str]] = set()

    def want(self, lane: Lane, hands: Hands, before: Collection[str]) -> int:
        """How many messages of a queue to claim for a lane, after those `before` it.

        None where one of these has more for the lane, unless that was just asked for in vain. A lane for which they
        have more keeps all the hands that it may have, also while it holds enough and is not asked for: of a later
        queue nothing is claimed ahead for them, and the next that frees is for the earlier one.
        """
        wanted = hands.want(lane, self._left_to_later(hands, before))
        has_more = any((lane, queue) not in self._in_vain for queue in lane.backlog.intersection(before))
        return 0 if has_more else wanted

    def _left_to_later(self, hands: Hands, before: Collection[str]) -> int:
        kept = sum(lane.most_hands for lane, its in self._lanes if its is hands and lane.backlog.intersection(before))
        return max(hands.most - kept, self._free[hands], 0)

    def add(self, lane: Lane, hands: Hands, queue: str, kept: int, *, filled: bool, left: bool, once: bool) -> None:
        """What a queue gave a lane that it was asked for."""
        if not kept:
            self._in_vain.add((lane, queue))
        given = self._given.setdefault(lane, _Given())
        given.filled |= filled
        given.left |= left
        given.once |= once
        self._free[hands] -= min(kept, self._spare[lane])

    @property
    def is_behind(self) -> bool:
        """Whether something due may be left behind."""
        return any(given.filled or given.left for given in self._given.values())

    def end(self) -> None:
        """Have each lane that was claimed for remember how that went."""
        for lane, given in self._given.items():
            lane.note_claim(filled=given.filled, left=given.left, once=given.once)
