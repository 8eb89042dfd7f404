"""One round of claims, queue after queue: a later queue gets the hands that earlier ones left."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django_delayq.worker.hands import Hands
from django_delayq.worker.lanes import Lane


@dataclass(slots=True)
class _Given:
    """The result of a lane's claims in one round: what they gave and left behind."""

    filled: bool = False
    left: bool = False
    once: bool = False


class Round:
    """Counts the hands that are taken. A hand that frees meanwhile is for the next round, which begins at the top."""

    def __init__(self, lanes: Collection[tuple[Lane, Hands]]) -> None:
        self._lanes = lanes
        self._free = {hands: hands.free for _, hands in lanes}
        self._spare = {lane: lane.concurrency - lane.active for lane, _ in lanes}
        self._given: dict[Lane, _Given] = {}
        self._in_vain: set[tuple[Lane, str]] = set()

    def wants(self, lanes: Iterable[tuple[Lane, Hands]], before: Collection[str]) -> dict[Lane, int]:
        """Return how many messages of a queue to claim for each of these lanes, after the queues `before` it.

        Returns 0 for a lane that still has a backlog in an earlier queue, unless its last claim there was empty. While
        it has, all of the lane's hands stay reserved for that queue, even while it holds enough and is not asked for:
        nothing is claimed ahead from a later queue, and the next hand to become free serves the earlier one.
        """
        if not before:
            return {lane: hands.want(lane, hands.most) for lane, hands in lanes}
        earlier = frozenset(before)
        left = self._left_to_later(earlier)
        return {lane: self._want(lane, hands, earlier, left[hands]) for lane, hands in lanes}

    def _want(self, lane: Lane, hands: Hands, before: frozenset[str], left: int) -> int:
        wanted = hands.want(lane, left)
        has_more = any((lane, queue) not in self._in_vain for queue in lane.backlog & before)
        return 0 if has_more else wanted

    def _left_to_later(self, before: frozenset[str]) -> dict[Hands, int]:
        """Return how many hands of each kind these queues leave to later ones: it is the same for all lanes."""
        kept = Counter[Hands]()
        for lane, hands in self._lanes:
            if not lane.backlog.isdisjoint(before):
                kept[hands] += lane.most_hands
        return {hands: max(hands.most - kept[hands], free, 0) for hands, free in self._free.items()}

    def add(self, lane: Lane, hands: Hands, queue: str, kept: int, *, filled: bool, left: bool, once: bool) -> None:
        """Note what a queue gave a lane that it was asked for."""
        if not kept:
            self._in_vain.add((lane, queue))
        given = self._given.setdefault(lane, _Given())
        given.filled |= filled
        given.left |= left
        given.once |= once
        self._free[hands] -= min(kept, self._spare[lane])

    def add_empty(self, lanes: Iterable[Lane], queues: Iterable[str] = ()) -> None:
        """Note that nothing is left for these lanes in these queues, whatever they gave."""
        for lane in lanes:
            self._given.setdefault(lane, _Given())
            lane.backlog.difference_update(queues)

    @property
    def is_behind(self) -> bool:
        """Return whether something due may be left behind."""
        return any(given.filled or given.left for given in self._given.values())

    def end(self) -> None:
        """Have each lane that was claimed for remember the result."""
        for lane, given in self._given.items():
            lane.note_claim(filled=given.filled, left=given.left, once=given.once)
