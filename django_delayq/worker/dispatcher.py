"""Claim messages for the free slots of the executors, in one call a turn, and distribute the leases."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from time import monotonic

from django_delayq.brokers.base import BATCH, ClaimRequest, Claims, Pair
from django_delayq.core.transitions import buried_info, is_at_most_once
from django_delayq.worker import attempt
from django_delayq.worker.events import UnstartedEvents
from django_delayq.worker.leases import Lease, Leases
from django_delayq.worker.limiter import Limiter
from django_delayq.worker.maintenance import Lanes, Pauses
from django_delayq.worker.plan import Backlog, ExecutorState, Plan, accept, plan, wants_any, with_lanes
from django_delayq.worker.prefetch import TIME_SLICE_S, Executor, PrefetchBuffer
from django_delayq.worker.settler import Settler

DRAIN_S = 0.5
"""How long, in seconds, no claim asks for everything after a successful one.

This applies only while the messages that are known to be due wait for busy slots.
"""
UNSTARTED_LOOK_S = 0.25
"""How often to look for leases that have waited too long for a slot, in seconds."""
UNSTARTED_S = 1.0
"""How many seconds after its claim a lease that no slot has started is released."""


class Dispatcher:
    """The part of the loop that claims for all executors and distributes the leases.

    `claim` claims messages or suspects. `order` takes the lanes that this worker serves (core/lanes.py), and returns
    the queues and lanes in the order in which the next claim serves them; an empty list if they have no order.
    """

    def __init__(
        self,
        claim: Callable[[Sequence[ClaimRequest]], Claims],
        *,
        due_pairs: Callable[[Collection[Pair]], Collection[Pair]],
        executors: Sequence[Executor],
        pauses: Pauses,
        lanes: Lanes,
        leases: Leases,
        settler: Settler,
        unstarted_events: UnstartedEvents,
        limiter: Limiter | None,
        order: Callable[[Collection[str]], Sequence[str]] = lambda lanes: (),
        most: int | None = None,
    ) -> None:
        self._claim = claim
        self._due_pairs = due_pairs
        self._executors = executors
        self._all_buffers = [buffer for executor in executors for buffer in executor.buffers]
        self._buffers = {
            key: (buffer, executor) for executor in executors for buffer in executor.buffers for key in buffer.keys
        }
        self._gathering = [(buffer, executor) for buffer, executor in self._buffers.values() if buffer.wait_s]
        self._gathered_at = 0.0
        self._own_queues = list(dict.fromkeys(queue for each in self._all_buffers for queue, _ in each.subscriptions))
        self._pauses = pauses
        self._lanes = lanes
        self._leases = leases
        self._settler = settler
        self._unstarted_events = unstarted_events
        self._limiter = limiter
        self._order = order
        self._queues: Sequence[str] = ()
        self._backlog = Backlog()
        self._serve(lanes.known)
        self._found_at = 0.0
        self._try_again_at = 0.0
        self._most = most
        self._kept: list[Lease] = []  # leases that have not ended, if `most` is given
        self._run = 0
        self._closed = False
        self._deferred_duplicates: list[Lease] = []  # their ids still run here under earlier leases
        self.wanted = False
        """Whether the last call of `claim` wanted messages for a slot."""
        self.skipped = False
        """Whether the last claim left a buffer out, or a limit refused one of its messages.

        The broker wakes the loop only for what the claim asked for, so after its sleep the loop must claim in any case.
        """

    @property
    def spent(self) -> bool:
        """Return whether the worker may claim no more messages."""
        return self._quota() <= 0

    @property
    def has_run(self) -> bool:
        """Return whether any message has been run."""
        return any(buffer.ended for buffer in self._all_buffers)

    @property
    def busy(self) -> bool:
        """Return whether a message waits or runs here, or was refused by a limit and will soon come again."""
        if self._deferred_duplicates or any(buffer.leases or buffer.active for buffer in self._all_buffers):
            return True
        return self._limiter is not None and self._limiter.waits() and not self.spent

    def wait_s(self) -> float:
        """Return the seconds until there is something to do here; infinity for never.

        A slot that becomes free, or a message that falls due, may end the wait earlier.
        """
        now = monotonic()
        until = now + UNSTARTED_LOOK_S if self.busy else math.inf
        if self._gathering:
            starts = (buffer.batch_starts_at() for buffer, _ in self._gathering)
            until = min(until, *(at for at in starts if at > self._gathered_at), math.inf)
        if self._try_again_at > now:
            until = min(until, self._try_again_at)
        elif self._limiter is not None:
            until = min(until, self._limiter.next_at)
        return until - now

    def claim(self) -> bool:
        """Claim once, leaving out what is paused, and distribute the leases.

        Return whether to claim again at once, because this claim kept something or did not ask for everything.
        """
        if self._lanes.known is not self._lanes_known:
            self._serve(self._lanes.known)
        executors = [executor.state() for executor in self._executors]
        planned = self._plan(executors)
        self.wanted, self.skipped = bool(planned.sizes), planned.skipped
        sent_at = monotonic()
        if planned.is_complete and planned.is_busy_with_due and sent_at < self._found_at + DRAIN_S:
            # No claim of everything is needed: the look would have seen what is due for buffers that are not busy.
            self.wanted, self._try_again_at = False, sent_at + TIME_SLICE_S
        if not self.wanted:
            self._backlog.forget()
            return False
        claims = self._claim(planned.requests)
        found = self._distribute(claims, sent_at, planned, executors)
        if claims.buried or claims.without_body:
            self._unstarted_events.report(claims.buried, claims.without_body)
        if len(self._queues) > 1:
            self._note_backlog(planned, found=found)
        if found:  # drawing an order at each turn until a slot is free would give every queue the same chance
            self._queues = self._order(self._lanes_known)
            self._found_at = sent_at
        return found or not planned.is_complete

    def _serve(self, lanes: Collection[str]) -> None:
        """Serve the lanes of this worker's queues, beside the queues themselves."""
        self._lanes_known = lanes
        self._all_queues = with_lanes(self._own_queues, lanes)
        self._pairs = [(queue, key) for each in self._all_buffers for queue in self._all_queues for key in each.keys]
        self._queues = self._order(self._lanes_known)
        self._backlog = Backlog()

    def _plan(self, executors: Sequence[ExecutorState]) -> Plan:
        """Plan the next claim. If queues with an order may have a backlog, first look up which pairs are due."""
        in_order = len(self._queues) > 1
        free_permits = {} if self._limiter is None else self._limiter.free_permits(self._all_buffers)
        if in_order and self._backlog.needs_look and wants_any(executors, free_permits) and not self.spent:
            due = self._due_pairs(self._pairs)
            if self._limiter is not None:
                due = [pair for pair in due if not self._limiter.is_closed(self._buffers[pair[1]][0])]
            self._backlog.see(due, monotonic())
        return plan(
            executors,
            self._queues or self._all_queues,
            in_order=in_order,
            due=self._backlog.pairs,
            free_permits=free_permits,
            pauses=self._pauses.known,
            quota=self._quota(),
        )

    def _note_backlog(self, planned: Plan, *, found: bool) -> None:
        if planned.is_complete:
            more_available = any(self._buffers[key][0].more_available for key in planned.sizes)
            self._backlog.note_claim_of_all(more_available=more_available)
            return
        asked = [request.pair for request in planned.requests]
        emptied = asked
        if found:  # otherwise all are empty: `more_available` may be about another queue of the buffer
            emptied = [pair for pair in asked if not self._buffers[pair[1]][0].more_available]
        self._backlog.note_claim(asked, emptied, found=found, now=monotonic())

    def _distribute(self, claims: Claims, sent_at: float, planned: Plan, executors: Sequence[ExecutorState]) -> bool:
        """Give the claimed leases to the executors, release those they can't take, and return whether any was kept."""
        if not claims.messages:
            self._end_empty(planned.sizes, claims.more_available)
            return False
        given, foreign = self._leases_of(claims, sent_at)
        running = self._leases.running_ids()
        self._leases.add([*chain.from_iterable(given.values()), *foreign])
        self._bury(foreign)
        limits: Mapping[tuple[int, str], int] = {place_key: len(leases) for place_key, leases in given.items()}
        if planned.is_complete and len(self._queues) > 1:
            limits = accept(executors, planned.sizes, limits)
        parts: dict[str, list[tuple[list[Lease], int]]] = {}
        ranks = {key: rank for rank, key in enumerate(planned.sizes)}
        for place, key in sorted(given, key=lambda each: (each[0], ranks.get(each[1], BATCH))):
            parts.setdefault(key, []).append((given[place, key], limits[place, key]))
        found = bool(foreign)
        for key, of_buffer in parts.items():
            found |= self._add(key, of_buffer, planned.sizes.get(key, BATCH), claims.more_available, running)
        self._end_empty(planned.sizes.keys() - parts.keys(), claims.more_available)
        return found

    def _end_empty(self, keys: Iterable[str], more_available: bool) -> None:
        """Note a claim that gave nothing to the buffers of these keys."""
        for key in keys:
            buffer, executor = self._buffers[key]
            executor.end_claim(buffer, [], more_available=more_available)

    def _add(
        self,
        key: str,
        parts: Sequence[tuple[list[Lease], int]],
        size: int,
        more_available: bool,
        running: Collection[str],
    ) -> bool:
        """Give a buffer its claimed leases: each part has the leases of one queue, and how many of them to keep.

        Return whether any lease was kept.
        """
        buffer, executor = self._buffers[key]
        at_most_once = {lease for leases, _ in parts for lease in leases if _is_at_most_once(lease)}
        kept, surplus = self._split(buffer, executor, parts, size, at_most_once)
        kept = self._admit(buffer, kept)
        if surplus:
            self._settler.release(surplus)
        duplicates = [lease for lease in kept if lease.claimed.id in running]
        self._deferred_duplicates += duplicates
        executor.end_claim(
            buffer,
            [lease for lease in kept if lease not in duplicates] if duplicates else kept,
            more_available=more_available or len(kept) < sum(len(leases) for leases, _ in parts),
            saturated=any(len(leases) >= size for leases, _ in parts),
            has_at_most_once=bool(at_most_once),
        )
        return bool(kept)  # don't claim again at once for leases that were all released: they would come again

    def _leases_of(self, claims: Claims, sent_at: float) -> tuple[dict[tuple[int, str], list[Lease]], list[Lease]]:
        """Return the leases by (position of the queue, key of the handler), and separately those of foreign messages.

        A message is foreign if no handler here has its key, or its header can't be read.
        """
        # The server read `now_ms` after `sent_at`, so a clock made of the two is never behind the server's.
        clock_ms = claims.now_ms - sent_at * 1000
        held_until = sent_at + self._leases.hold_s
        places = {queue: place for place, queue in enumerate(self._queues)}
        given: dict[tuple[int, str], list[Lease]] = {}
        foreign: list[Lease] = []
        any_handler = next(iter(self._buffers.values()))[0].handler  # any will do: no handler runs a foreign message
        for claimed in claims.messages:
            header = claimed.header
            found = self._buffers.get(header.key) if header else None
            if header is None or found is None:
                foreign.append(Lease(claimed, any_handler, sent_at, held_until, clock_ms))
                continue
            place_key = places.get(header.queue, 0), found[0].handler.key
            given.setdefault(place_key, []).append(Lease(claimed, found[0].handler, sent_at, held_until, clock_ms))
        return given, foreign

    def _split(
        self,
        buffer: PrefetchBuffer,
        executor: Executor,
        parts: Sequence[tuple[list[Lease], int]],
        size: int,
        at_most_once: Collection[Lease],
    ) -> tuple[list[Lease], list[Lease]]:
        """Return the leases to keep, which are at most the limit of each part, and the surplus.

        At-most-once messages are kept only for idle slots. A claim may give more of them, because it asks each (queue,
        key) pair of a buffer for all that the buffer wants, and buffers share slots.
        """
        kept: list[Lease] = []
        surplus: list[Lease] = []
        quota = self._quota()
        idle = buffer.state(0).idle_slots(executor.idle) if at_most_once else 0
        for leases, limit in parts:
            most = min(limit, quota - len(kept), size if buffer.handler.limits else BATCH)
            if at_most_once:
                first, others = [x for x in leases if x in at_most_once], [x for x in leases if x not in at_most_once]
                place = max(idle - len(kept), 0)
                surplus += first[place:]
                leases = [*first[:place], *others]
            kept += leases[:most]
            surplus += leases[most:]
        return kept, surplus

    def _admit(self, buffer: PrefetchBuffer, leases: list[Lease]) -> list[Lease]:
        """Return the leases that the handler's limits let start, and release the others with a delay."""
        if self._limiter is not None and buffer.handler.limits is not None:
            refused = self._limiter.admit(buffer, leases)
            self._settler.put_off(refused)
            self.skipped |= bool(refused)
            leases = [lease for lease in leases if lease not in refused]
        if self._most is not None:
            self._kept += leases
        return leases

    def _bury(self, foreign: list[Lease]) -> None:
        for lease in foreign:
            transition = attempt.bury_foreign(lease.claimed)
            self._settler.add(lease, transition)
            self._unstarted_events.report([buried_info(transition)])

    def close(self) -> None:
        """Claim no more, and release the leases that no slot has started. Running handlers continue."""
        self._closed = True
        self.release_unstarted(older_than_s=0)

    def release_unstarted(self, older_than_s: float = UNSTARTED_S) -> None:
        """Release the leases that were claimed over `older_than_s` ago and that no slot has started.

        With 0 also those of batches that wait for more messages.
        """
        claimed_before = monotonic() - older_than_s if older_than_s else math.inf
        if self._deferred_duplicates:
            self._settler.release(self._take_deferred(lambda lease: lease.claimed_at < claimed_before))
        if any(buffer.leases for buffer in self._all_buffers):
            for executor in self._executors:
                executor.release_unstarted(claimed_before)

    def look_after_unstarted(self) -> None:
        """Release leases that are paused or have waited too long, and start deferred duplicates that may start now.

        Start batches that have waited for long enough, too.
        """
        if self._pauses.known:
            self._release_paused()
        if self._gathering:
            self._start_gathered()
        self.release_unstarted()
        if self._deferred_duplicates:
            self._start_deferred()

    def release_unused_permits(self) -> None:
        """Release the permits that this worker has kept, but not used for a while."""
        if self._limiter is not None:
            self._limiter.release_unused()

    def _release_paused(self) -> None:
        self._settler.release(self._take_deferred(self._pauses.cover))
        for executor in self._executors:
            executor.release_paused(self._pauses.cover)

    def _start_gathered(self) -> None:
        self._gathered_at = monotonic()
        for buffer, executor in self._gathering:
            if buffer.batch_starts_at() <= self._gathered_at:
                executor.offer(buffer)

    def _start_deferred(self) -> None:
        """Start the deferred duplicates whose earlier lease has ended.

        They arise when this worker was frozen past the end of a lease, and then claims the message that its own thread
        still runs.
        """
        running = self._leases.running_ids()
        for lease in self._take_deferred(lambda lease: lease.claimed.id not in running):
            buffer, executor = self._buffers[lease.handler.key]
            executor.add(buffer, [lease])

    def _take_deferred(self, is_meant: Callable[[Lease], bool]) -> list[Lease]:
        taken = [lease for lease in self._deferred_duplicates if is_meant(lease)]
        self._deferred_duplicates = [lease for lease in self._deferred_duplicates if lease not in taken]
        return taken

    def _quota(self) -> int:
        """Return how many more messages the worker may take."""
        if self._closed:
            return 0
        return BATCH if self._most is None else self._most - self._count_kept()

    def _count_kept(self) -> int:
        """Return how many messages the worker has taken so far, without those that it released unstarted."""
        ended = {lease for lease in self._kept if lease.ended}
        self._run += sum(not lease.released for lease in ended)
        self._kept = [lease for lease in self._kept if lease not in ended and not lease.released]
        return self._run + len(self._kept)


def _is_at_most_once(lease: Lease) -> bool:
    return is_at_most_once(lease.claimed.header, lease.handler)
