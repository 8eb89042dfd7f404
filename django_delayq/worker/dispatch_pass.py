"""One round of claims, queue after queue: a later queue gets the hands that earlier ones left."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django_delayq.worker.executors.base import Executor
from django_delayq.worker.prefetch import PrefetchBuffer


@dataclass(slots=True)
class _Given:
    """The result of a lane's claims in one round: what they gave and left behind."""

    filled: bool = False
    left: bool = False
    once: bool = False


class DispatchPass:
    """Counts the hands that are taken. A hand that frees meanwhile is for the next round, which begins at the top."""

    def __init__(self, buffers: Collection[tuple[PrefetchBuffer, Executor]]) -> None:
        self._lanes = buffers
        self._free = {hands: hands.free for _, hands in buffers}
        self._spare = {buffer: buffer.concurrency - buffer.active for buffer, _ in buffers}
        self._given: dict[PrefetchBuffer, _Given] = {}
        self._in_vain: set[tuple[PrefetchBuffer, str]] = set()

    def wants(
        self, buffers: Iterable[tuple[PrefetchBuffer, Executor]], before: Collection[str]
    ) -> dict[PrefetchBuffer, int]:
        """Return how many messages of a queue to claim for each of these lanes, after the queues `before` it.

        Returns 0 for a lane that still has a backlog in an earlier queue, unless its last claim there was empty. While
        it has, all of the lane's hands stay reserved for that queue, even while it holds enough and is not asked for:
        nothing is claimed ahead from a later queue, and the next hand to become free serves the earlier one.
        """
        if not before:
            return {buffer: hands.want(buffer, hands.most) for buffer, hands in buffers}
        earlier = frozenset(before)
        left = self._left_to_later(earlier)
        return {buffer: self._want(buffer, hands, earlier, left[hands]) for buffer, hands in buffers}

    def _want(self, buffer: PrefetchBuffer, hands: Executor, before: frozenset[str], left: int) -> int:
        wanted = hands.want(buffer, left)
        has_more = any((buffer, queue) not in self._in_vain for queue in buffer.backlog & before)
        return 0 if has_more else wanted

    def _left_to_later(self, before: frozenset[str]) -> dict[Executor, int]:
        """Return how many hands of each kind these queues leave to later ones: it is the same for all lanes."""
        kept = Counter[Executor]()
        for buffer, hands in self._lanes:
            if not buffer.backlog.isdisjoint(before):
                kept[hands] += buffer.most_hands
        return {hands: max(hands.most - kept[hands], free, 0) for hands, free in self._free.items()}

    def add(
        self, buffer: PrefetchBuffer, hands: Executor, queue: str, kept: int, *, filled: bool, left: bool, once: bool
    ) -> None:
        """Note what a queue gave a lane that it was asked for."""
        if not kept:
            self._in_vain.add((buffer, queue))
        given = self._given.setdefault(buffer, _Given())
        given.filled |= filled
        given.left |= left
        given.once |= once
        self._free[hands] -= min(kept, self._spare[buffer])

    def add_empty(self, buffers: Iterable[PrefetchBuffer], queues: Iterable[str] = ()) -> None:
        """Note that nothing is left for these lanes in these queues, whatever they gave."""
        for buffer in buffers:
            self._given.setdefault(buffer, _Given())
            buffer.backlog.difference_update(queues)

    @property
    def is_behind(self) -> bool:
        """Return whether something due may be left behind."""
        return any(given.filled or given.left for given in self._given.values())

    def end(self) -> None:
        """Have each lane that was claimed for remember the result."""
        for buffer, given in self._given.items():
            buffer.note_claim(filled=given.filled, left=given.left, once=given.once)
