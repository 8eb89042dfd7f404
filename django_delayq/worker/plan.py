"""Plan which queues and keys to claim, and how many messages of each. Pure: no clock, no lock, no I/O.

First comes what the options make of a worker's handlers: which queues it serves, and how many messages run at once.

There is one claim a turn. Without a backlog it asks all queues. While ordered queues have a backlog, it asks for each
handler only the first queue with something due, and the handler's later queues wait until that one is empty. Slots that
an earlier queue may use are not filled from a later one.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import BATCH, ClaimRequest, ExecutorInfo, Pair, Pause, covering
from django_delayq.conf import DEFAULT_QUEUE
from django_delayq.core.lanes import lanes_of
from django_delayq.core.shares import Shares
from django_delayq.worker.options import Options, ServedQueue

Handlers = Iterable[Handler[Any, Any]]

Given = Mapping[tuple[int, str], int]
"""How many messages a claim gave, by (position of the queue in the order, key of the handler)."""
CONCURRENCY = 100
"""How many messages of an async handler run at once if it doesn't say."""
SEEN_FOR_S = 0.020
"""How long the pairs that one look found due are used, in seconds.

A message that comes due in an earlier queue meanwhile may wait that much longer.
"""


def queues_of(handlers: Handlers, options: Options) -> list[str]:
    """Return the queues to serve: those asked for, or else the default one and every one that a handler names."""
    return [queue.name for queue in options.queues] or sorted({DEFAULT_QUEUE} | {handler.queue for handler in handlers})


def served_of(handlers: Mapping[str, Handler[Any, Any]], options: Options) -> set[Pair]:
    """Return the (queue, key) pairs that workers with these options claim from. `handlers` is by key."""
    return {(queue, key) for queue in queues_of(handlers.values(), options) for key in handlers}


def concurrency_of(handler: Handler[Any, Any], options: Options) -> int:
    """Return how many messages of a handler run at once in this worker.

    The workers of one supervisor share the handler's concurrency. The remainder goes to different workers for different
    keys.
    """
    if handler.concurrency is None:
        return CONCURRENCY if handler.is_async else options.threads
    workers = max(options.processes, 1)
    place = (options.index + crc32(handler.key.encode())) % workers
    return (handler.concurrency + workers - 1 - place) // workers


def slots_of(handlers: Handlers, options: Options) -> int:
    """Return how many sync handlers run at once at most."""
    sync = sum(concurrency_of(handler, options) for handler in handlers if not handler.is_async)
    return min(sync, options.max_threads)


def tasks_of(handlers: Handlers, options: Options) -> int:
    """Return how many async handlers run at once at most."""
    return sum(concurrency_of(handler, options) for handler in handlers if handler.is_async)


def executor_infos(handlers: Mapping[str, Handler[Any, Any]], options: Options) -> list[ExecutorInfo]:
    """Return the slots of threads and of tasks, for the heartbeat. `handlers` is by key."""

    def of(*, is_async: bool) -> dict[str, int]:
        return {
            key: concurrency_of(handler, options) for key, handler in handlers.items() if handler.is_async is is_async
        }

    each = set(handlers.values())  # once each, although a handler may have former keys
    return [
        ExecutorInfo(slots_of(each, options), of(is_async=False)),
        ExecutorInfo(tasks_of(each, options), of(is_async=True)),
    ]


class BufferState(NamedTuple):
    """A snapshot of a prefetch buffer."""

    key: str
    """The key of its handler, which names the buffer."""
    keys: Sequence[str]
    """The keys that the buffer claims: the handler's key and its former ones."""
    slots: int
    """How many messages of the handler may run at once in this worker."""
    max_slots: int
    """`slots`, or the handler's limit over all workers if that is lower."""
    available: int
    """How many more slots of the executor the buffer may get, besides those that work for it."""
    active: int = 0
    """How many slots work for the buffer."""
    waiting: int = 0
    """How many leases wait in the buffer."""
    per_slot: int = 1
    """How many messages one slot gets through in a time slice."""
    is_draining: bool = False
    """Whether its slots have made progress since the last claim and will be free again in a moment."""
    is_idle_only: bool = False
    """Whether to claim only for idle slots, because each message must start as soon as it is leased."""
    added_at: float = 0.0
    """When leases were last added, by the monotonic clock."""
    batch: int = 1
    """How many messages one run takes."""
    shares: Shares | None = None
    """How its messages are shared, if they are."""

    def idle_slots(self, idle: int) -> int:
        """Return how many more messages would start at once if the executor has `idle` idle slots."""
        return max(min(self.slots - self.active, idle) * self.batch - self.waiting, 0)

    def slots_for(self, messages: int) -> int:
        """Return how many of its free slots so many messages take."""
        return min(-(-messages // self.batch), self.slots - self.active)

    def fetch_size(self, slots: int) -> int:
        """Return how many messages to claim for at most `slots` slots.

        Busy slots count only while the buffer drains, so nothing piles up behind a handler that stalls. Return 0 if
        less than half of what the slots can take is missing, because small claims cost as much as large ones. A batch
        takes what there is until it is full.
        """
        if self.is_idle_only:
            return self.idle_slots(min(self.available, slots))
        usable = min(self.slots - self.active, self.available)
        if self.is_draining:
            usable += self.active
        target = min(usable, slots) * self.per_slot
        missing = target - self.waiting
        if self.batch > 1:
            return max(missing, 0)
        return missing if missing * 2 >= target else 0


class ExecutorState(NamedTuple):
    """A snapshot of an executor."""

    slots: int
    idle: int
    """How many slots are idle and have no message waiting for them; that many more messages would start at once."""
    buffers: Sequence[BufferState]


class Plan(NamedTuple):
    """A claim to make. If all that it wants is paused, `requests` is empty: the loop sleeps until a resume wakes it."""

    requests: list[ClaimRequest]
    sizes: dict[str, int]
    """How many messages of one queue to claim for each buffer, by key, in the order in which the buffers are served."""
    is_complete: bool
    """Whether the claim asks for everything that there are slots for, not only for pairs known to be due."""
    skipped: bool
    """Whether there is a buffer for which the claim asks nothing."""
    is_busy_with_due: bool
    """Whether something is due for a buffer that has messages running or waiting here."""


def wants_any(executors: Sequence[ExecutorState], free_permits: Mapping[str, int]) -> bool:
    """Return whether any buffer wants messages that its limits let start."""
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
    """Return what to claim from `queues`. If they are `in_order`, an earlier queue comes before a later one.

    `due` are the pairs known to have something due; it is empty if that is not known. `free_permits` says, by handler
    key, how many more messages the limits let start, and `quota` is how many more the worker may take.
    """
    if pauses:
        due = [pair for pair in due if not covering(pauses, *pair)]
    buffers = {buffer.key: buffer for executor in executors for buffer in executor.buffers}
    idle = {each.key: each.idle_slots(executor.idle) for executor in executors for each in executor.buffers}
    first_due = _first_due(buffers.values(), queues, due)
    sizes = _sizes(executors, first_due, free_permits or {}, quota)
    of_due = {key: size for key, size in sizes.items() if size and key in first_due}
    others = {key: size for key, size in sizes.items() if size and key not in first_due}
    if in_order and not of_due:  # any queue of a handler may give something, but only the first that does is kept
        others = {key: min(size, max(idle[key], 1)) for key, size in others.items()}
    asked = of_due or others
    # Serve first the buffers that got nothing for longest, and among equals those that want least: one call may not
    # give all that is wanted, and a buffer with a backlog would leave nothing for the others.
    served = sorted(asked, key=lambda key: (buffers[key].added_at, asked[key]))
    if of_due:
        served.sort(key=first_due.__getitem__)
        pairs = _due_pairs([buffers[key] for key in served], [queues[first_due[key]] for key in served], due)
    else:
        pairs = _all_pairs([buffers[key] for key in served], queues, in_order=in_order)
    return Plan(
        [
            ClaimRequest(*pair, asked[key], idle[key], buffers[key].shares)
            for key, pair in pairs
            if not (pauses and covering(pauses, *pair))
        ],
        {key: asked[key] for key in served},
        is_complete=not of_due,
        skipped=len(asked) < len(buffers),
        is_busy_with_due=any(buffers[key].active or buffers[key].waiting for key in first_due),
    )


def accept(executors: Sequence[ExecutorState], sizes: Mapping[str, int], given: Given) -> Mapping[tuple[int, str], int]:
    """Return how many messages of a claim to keep: from a later queue only as many as earlier ones leave slots for.

    If a queue gave a handler all that was asked for, it may have more. So nothing is kept for that handler from later
    queues, and its slots stay reserved.
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
                idle -= buffer.slots_for(keep)
                if buffer.key not in more and given.get((place, buffer.key), 0) >= sizes.get(buffer.key, BATCH):
                    more.add(buffer.key)
                    reserved += buffer.max_slots
    return kept


def _due_pairs(
    served: Sequence[BufferState], queues: Sequence[str], due: Collection[Pair]
) -> Iterator[tuple[str, Pair]]:
    """Yield (key of the buffer, pair) for each pair that is due in its buffer's queue.

    `queues` has the queue of each buffer in `served`, in the same order.
    """
    is_due = frozenset(due)
    for buffer, queue in zip(served, queues, strict=True):
        for key in buffer.keys:
            if (queue, key) in is_due:
                yield buffer.key, (queue, key)


def _all_pairs(served: Sequence[BufferState], queues: Sequence[str], *, in_order: bool) -> Iterator[tuple[str, Pair]]:
    """Yield (key of the buffer, pair) for all pairs: queue by queue if `in_order`, otherwise buffer by buffer."""
    if in_order:
        return ((buffer.key, (queue, key)) for queue in queues for buffer in served for key in buffer.keys)
    return ((buffer.key, (queue, key)) for buffer in served for queue in queues for key in buffer.keys)


def _first_due(buffers: Collection[BufferState], queues: Sequence[str], due: Collection[Pair]) -> dict[str, int]:
    """Return the position of the first queue with something due, by key of the buffer.

    Buffers for which nothing is due are left out.
    """
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
    """Return how many messages of one queue to claim for each buffer.

    Slots that a buffer may use stay reserved for it against buffers whose first due queue is later, except idle slots.
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
                idle -= buffer.slots_for(size)
    return sizes


class Backlog:
    """The pairs that a look at the broker found due, without the pairs that claims have emptied meanwhile.

    A look is used until claims have asked for each of its pairs, or until it is older than `SEEN_FOR_S`. After that a
    new look is needed, because messages may have fallen due in earlier queues. A claim that finds nothing does not end
    the look, but removes the pairs that it asked for. If no pair is left, the next claim asks for all.
    """

    def __init__(self) -> None:
        self.pairs: set[Pair] = set()
        """The pairs in which something is known to be due."""
        self._unasked: set[Pair] = set()  # those of `pairs` that no claim has asked for yet
        self._seen_at = 0.0
        self._may_have_more = True

    @property
    def needs_look(self) -> bool:
        """Return whether there may be a backlog of which no pair is known."""
        return self._may_have_more and not self.pairs

    def see(self, due: Collection[Pair], now: float) -> None:
        """Note the pairs that a look found due."""
        self.pairs = set(due)
        self._unasked = self.pairs.copy()
        self._seen_at = now

    def forget(self) -> None:
        """Forget the last look, because it will be too old for the next claim."""
        self.pairs.clear()

    def note_claim(self, asked: Collection[Pair], emptied: Collection[Pair], *, found: bool, now: float) -> None:
        """Note a claim of known pairs: the pairs that it `asked` for, and which of these it `emptied`."""
        self._unasked.difference_update(asked)
        self.pairs.difference_update(emptied)
        self._may_have_more = bool(self.pairs)
        if found and (not self._unasked or now >= self._seen_at + SEEN_FOR_S):
            self.forget()

    def note_claim_of_all(self, *, more_available: bool) -> None:
        """Note a claim of everything that there are slots for, and whether it may have left something behind."""
        self._may_have_more = more_available or bool(self.pairs)
        self.forget()


def claim_order(queues: Iterable[ServedQueue], random: Random, lanes: Collection[str] = ()) -> list[str]:
    """Return the names of the queues in the order in which the next claim asks them, each among its own of `lanes`.

    Neighbouring queues with weights are put in a random order: each comes first with a probability of its weight
    divided by the sum of their weights. The rest are ordered in the same way.
    """
    names: list[str] = []
    for is_weighted, group in groupby(queues, key=lambda queue: queue.weight is not None):
        neighbours = list(group)
        if is_weighted:  # of exponential times, each is the least with probability rate / sum of the rates
            neighbours.sort(key=lambda queue: random.expovariate(queue.weight or 1))
        names += [queue.name for queue in neighbours]
    return with_lanes(names, lanes)


def with_lanes(queues: Sequence[str], lanes: Collection[str]) -> list[str]:
    """Return the queues in their order, each among its lanes, from the highest priority to the lowest.

    A lane that is one of the queues itself stays where it is.
    """
    if not lanes:
        return list(queues)
    others = set(lanes).difference(queues)
    return [name for queue in queues for name in lanes_of(queue, others)]
