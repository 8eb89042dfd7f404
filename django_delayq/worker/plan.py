"""Plan a claim: of which queues and keys, and how many of each. Pure: values in, values out; no clock, no lock, no I/O.

One claim a turn. While something is left behind in queues that have an order, a claim asks each handler's first queue
that has something due; a later queue of the handler comes to its turn once that one is empty, and slots that an earlier
queue may use are not filled from a later one. With nothing known to be left behind, one claim asks all queues.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from random import Random
from typing import NamedTuple

from django_delayq.brokers.base import BATCH, ClaimRequest, Pair, Pause, covering
from django_delayq.worker.options import ServedQueue

Given = Mapping[tuple[int, str], int]
"""How many messages a claim gave, by the place of the queue in the order and the key of the handler."""
SEEN_FOR_S = 0.020
"""How long a look serves: what comes due meanwhile in an earlier queue waits so much longer than it must."""


class BufferState(NamedTuple):
    """A prefetch buffer at one moment."""

    key: str
    """The key of its handler, which names the buffer."""
    keys: Sequence[str]
    """The keys that it claims: that of the handler, and the former ones."""
    slots: int
    """How many messages of the handler may run at once."""
    max_slots: int
    """How many may, also by a limit on all messages of the handler."""
    available: int
    """How many slots of the executor may come to it, besides those that work for it."""
    active: int = 0
    """How many slots work for it."""
    waiting: int = 0
    per_slot: int = 1
    """How many messages one slot gets through in a moment."""
    is_draining: bool = False
    """Whether the slots that work for it get on, and leave in a moment."""
    is_idle_only: bool = False
    """Whether it claims nothing ahead, because each message must start as soon as it is leased."""
    added_at: float = 0.0
    """When it was given a message last."""

    def idle_slots(self, idle: int) -> int:
        """Return how many more messages would start at once, with `idle` slots that nothing waits for."""
        return max(min(self.slots - self.active, idle) - self.waiting, 0)

    def fetch_size(self, slots: int) -> int:
        """Return how many messages to claim for `slots` slots at most.

        Busy slots count only while the buffer drains: nothing is heaped up behind a handler that stalls. It is half of
        what the slots can take, or nothing: small claims cost as much as large ones.
        """
        if self.is_idle_only:
            return self.idle_slots(min(self.available, slots))
        usable = min(self.slots - self.active, self.available)
        if self.is_draining:
            usable += self.active
        target = min(usable, slots) * self.per_slot
        missing = target - self.waiting
        return missing if missing * 2 >= target else 0


class ExecutorState(NamedTuple):
    """A snapshot of an executor."""

    slots: int
    idle: int
    """How many slots have no message waiting for them: as many more would start at once."""
    buffers: Sequence[BufferState]


class Plan(NamedTuple):
    """A claim to make. Without requests, because all is paused, the broker sleeps until it hears of a resume."""

    requests: list[ClaimRequest]
    sizes: dict[str, int]
    """How many messages of one queue each buffer is claimed for, in the order in which they are served."""
    is_complete: bool
    """Whether it asks all that there are slots for, not only what is known to be due."""
    skipped: bool
    """Whether it asks nothing for some buffer, because that has what it can take."""
    is_busy_with_due: bool
    """Whether something is due for a buffer whose messages run or wait here."""


def wants_any(executors: Sequence[ExecutorState], free_permits: Mapping[str, int]) -> bool:
    """Return whether any buffer wants messages that limits let start."""
    return any(
        free_permits.get(buffer.key, BATCH) and buffer.fetch_size(executor.slots)
        for executor in executors
        for buffer in executor.buffers
    )


def plan(
    executors: Sequence[ExecutorState],
    queues: Sequence[str],
    *,
    in_order: bool = False,
    due: Collection[Pair] = (),
    free_permits: Mapping[str, int] | None = None,
    pauses: Sequence[Pause] = (),
    quota: int = BATCH,
) -> Plan:
    """Return what to claim from `queues`, of which an earlier one comes first if they are `in_order`.

    `due` are the pairs that are known to have something due, where that is known. `free_permits` has, by handler, how
    many more messages its limits let start, and `quota` is how many more the worker may take.
    """
    if pauses:
        due = [pair for pair in due if not covering(pauses, *pair)]
    buffers = {buffer.key: buffer for executor in executors for buffer in executor.buffers}
    idle = {each.key: each.idle_slots(executor.idle) for executor in executors for each in executor.buffers}
    first_due = _first_due(buffers.values(), queues, due)
    sizes = _sizes(executors, first_due, free_permits or {}, quota)
    of_due = {key: size for key, size in sizes.items() if size and key in first_due}
    others = {key: size for key, size in sizes.items() if size and key not in first_due}
    if in_order and not of_due:  # every queue of a handler may give something, and only the first may keep it
        others = {key: min(size, max(idle[key], 1)) for key, size in others.items()}
    asked = of_due or others
    # First come those that were given nothing for longest, and among equals those that want little: one call may not
    # give all that is wanted, and buffers with a backlog would leave nothing for the others.
    served = sorted(asked, key=lambda key: (buffers[key].added_at, asked[key]))
    if of_due:
        served.sort(key=first_due.__getitem__)
        pairs = _due_pairs([buffers[key] for key in served], [queues[first_due[key]] for key in served], due)
    else:
        pairs = _all_pairs([buffers[key] for key in served], queues, in_order=in_order)
    return Plan(
        [ClaimRequest(*pair, asked[key], idle[key]) for key, pair in pairs if not (pauses and covering(pauses, *pair))],
        {key: asked[key] for key in served},
        is_complete=not of_due,
        skipped=len(asked) < len(buffers),
        is_busy_with_due=any(buffers[key].active or buffers[key].waiting for key in first_due),
    )


def accept(executors: Sequence[ExecutorState], sizes: Mapping[str, int], given: Given) -> Mapping[tuple[int, str], int]:
    """Return how many to keep of what a claim of several queues gave: of a later queue only what earlier ones leave.

    A queue that gave a handler all that it was claimed for may have more for it.
    """
    kept: dict[tuple[int, str], int] = {}
    for executor in executors:
        idle, reserved = executor.idle, 0
        more: set[str] = set()
        ahead: dict[str, int] = defaultdict(int)
        for place in sorted({place for place, _ in given}):
            slots = max(executor.slots - reserved, idle, 0)
            for buffer in executor.buffers:
                if (count := given.get((place, buffer.key), 0)) == 0:
                    continue
                if place > 0:
                    waiting = buffer.waiting + ahead[buffer.key]
                    fetch_size = buffer._replace(waiting=waiting).fetch_size(slots)
                    count = 0 if buffer.key in more else min(count, fetch_size)
                kept[place, buffer.key] = count
            for buffer in executor.buffers:
                ahead[buffer.key] += (keep := kept.get((place, buffer.key), 0))
                idle -= min(keep, buffer.slots - buffer.active)
                if buffer.key not in more and given.get((place, buffer.key), 0) >= sizes.get(buffer.key, BATCH):
                    more.add(buffer.key)
                    reserved += buffer.max_slots
    return kept


def _due_pairs(
    served: Sequence[BufferState], queues: Sequence[str], due: Collection[Pair]
) -> Iterator[tuple[str, Pair]]:
    """Yield for each buffer the pairs that are due in its queue, of `queues`."""
    is_due = frozenset(due)
    for buffer, queue in zip(served, queues, strict=True):
        for key in buffer.keys:
            if (queue, key) in is_due:
                yield buffer.key, (queue, key)


def _all_pairs(served: Sequence[BufferState], queues: Sequence[str], *, in_order: bool) -> Iterator[tuple[str, Pair]]:
    """Yield all pairs of each buffer: first queues first, or the buffers one after another."""
    if in_order:
        return ((buffer.key, (queue, key)) for queue in queues for buffer in served for key in buffer.keys)
    return ((buffer.key, (queue, key)) for buffer in served for queue in queues for key in buffer.keys)


def _first_due(buffers: Collection[BufferState], queues: Sequence[str], due: Collection[Pair]) -> dict[str, int]:
    """Return the place of the first queue in which something is due, for each buffer for which anything is."""
    if not due:
        return {}
    places = {queue: place for place, queue in enumerate(queues)}
    names = {key: buffer.key for buffer in buffers for key in buffer.keys}
    first: dict[str, int] = {}
    for queue, key in due:
        first[names[key]] = min(first.get(names[key], len(queues)), places[queue])
    return first


def _sizes(
    executors: Sequence[ExecutorState], first_due: Mapping[str, int], free_permits: Mapping[str, int], quota: int
) -> dict[str, int]:
    """Return how many messages to claim of one queue, for each buffer.

    Slots that a buffer may use for its earlier queue stay reserved for it, as far as they are not idle anyway.
    """
    sizes = {}
    for executor in executors:
        idle, reserved = executor.idle, 0

        def place_of(buffer: BufferState) -> float:
            return first_due.get(buffer.key, float("inf"))

        for _, group in groupby(sorted(executor.buffers, key=place_of), key=place_of):
            slots, buffers = max(executor.slots - reserved, idle, 0), list(group)
            for buffer in buffers:
                size = min(buffer.fetch_size(slots), free_permits.get(buffer.key, BATCH), quota)
                sizes[buffer.key] = size
                reserved += buffer.max_slots
                idle -= min(size, buffer.slots - buffer.active)
    return sizes


class Backlog:
    """The pairs in which something is due, as a look at the broker saw it, without those that claims have emptied.

    One look serves the next claims for a moment, until each of its pairs was asked for. Then another look tells what is
    now due in earlier queues. After a claim that found nothing it serves until it is used up, and a claim of everything
    follows.
    """

    def __init__(self) -> None:
        self.pairs: set[Pair] = set()
        """The pairs in which something is known to be due."""
        self._unasked: set[Pair] = set()  # of these, what no claim has asked for
        self._seen_at = 0.0
        self._may_have_more = True

    @property
    def needs_look(self) -> bool:
        """Return whether something may be left behind, and it is not known where."""
        return self._may_have_more and not self.pairs

    def see(self, due: Collection[Pair], now: float) -> None:
        """Note what a look saw to be due."""
        self.pairs = set(due)
        self._unasked = self.pairs.copy()
        self._seen_at = now

    def forget(self) -> None:
        """Forget what was seen, because it is too old by the time of the next claim."""
        self.pairs.clear()

    def note_claim(self, asked: Collection[Pair], emptied: Collection[Pair], *, found: bool, now: float) -> None:
        """Note a claim of some pairs that are known to be due: which it asked for, and which have nothing more."""
        self._unasked.difference_update(asked)
        self.pairs.difference_update(emptied)
        self._may_have_more = bool(self.pairs)
        if found and (not self._unasked or now >= self._seen_at + SEEN_FOR_S):
            self.forget()

    def note_claim_of_all(self, *, more_available: bool) -> None:
        """Note a claim of all that there are slots for, and whether it left anything behind."""
        self._may_have_more = more_available or bool(self.pairs)
        self.forget()


def claim_order(queues: Iterable[ServedQueue], random: Random) -> list[str]:
    """Return the names of the queues in the order in which the next claim asks them.

    Neighbours with weights are put in a random order: each comes first with the probability of its weight over the sum
    of their weights, then each of the others likewise.
    """
    names: list[str] = []
    for is_weighted, group in groupby(queues, key=lambda queue: queue.weight is not None):
        neighbours = list(group)
        if is_weighted:  # an exponential time is the least with the probability of its rate over the sum of the rates
            neighbours.sort(key=lambda queue: random.expovariate(queue.weight or 1))
        names += [queue.name for queue in neighbours]
    return names
