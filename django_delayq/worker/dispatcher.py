"""Claim what each lane wants, in one call, and deal out the leases."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from time import monotonic

from django_delayq.brokers.base import BATCH, Claimed, ClaimRequest, Claims, Pair
from django_delayq.core.retry import is_at_most_once
from django_delayq.core.transitions import buried_info
from django_delayq.worker import attempt
from django_delayq.worker.dispatch_pass import DispatchPass
from django_delayq.worker.executors.base import Executor
from django_delayq.worker.leases import Leases
from django_delayq.worker.limiter import Limiting
from django_delayq.worker.pauses import Pauses
from django_delayq.worker.prefetch import Lease, PrefetchBuffer, take_paused, take_unstarted
from django_delayq.worker.settler import Settler
from django_delayq.worker.unstarted_events import UnstartedEvents

UNSTARTED_S = 1.0
"""Seconds after its claim at which a lease that no hand has started is given back."""

HandsOf = Mapping[str, tuple[PrefetchBuffer, Executor]]
"""The lane of each key, and the hands that serve it."""


class Dispatcher:
    """Claims for all lanes and deals out what comes. `claim` is the broker's, for messages or for suspects."""

    def __init__(
        self,
        claim: Callable[[Sequence[ClaimRequest]], Claims],
        *,
        due_pairs: Callable[[Collection[Pair]], Collection[Pair]],
        hands_of: HandsOf,
        pauses: Pauses,
        leases: Leases,
        settler: Settler,
        unstarted_events: UnstartedEvents,
        limiting: Limiting,
        order: Callable[[], Sequence[str]],
        most: int | None = None,
    ) -> None:
        self._claim = claim
        self._due_pairs = due_pairs
        self._hands_of = hands_of
        self._lanes = list(dict.fromkeys(hands_of.values()))  # once each, whatever its former keys
        pairs = chain.from_iterable(buffer.sets for buffer, _ in self._lanes)
        self._places = {pair: place for place, pair in enumerate(pairs)}
        self._pauses = pauses
        self._leases = leases
        self._settler = settler
        self._unstarted_events = unstarted_events
        self._limiting = limiting
        self._order = order
        self._queues = order()
        self._backlog = True
        self._found = False
        self._most = most
        self._kept: list[Lease] = []  # that have not ended, where `most` is given
        self._run = 0
        self._closed = False
        self._behind: list[Lease] = []  # their ids still run here, by earlier leases
        self._kept_at: dict[PrefetchBuffer, float] = {}
        self.wanted = False
        """Whether a hand was free at the last claim."""
        self.left_out = False
        """Whether it left out a lane, or a limit kept something from it.

        The broker waits only for what was claimed, so it knows nothing of these.
        """

    @property
    def spent(self) -> bool:
        """Return whether the worker has claimed as many messages as it ever may."""
        return self._room() <= 0

    @property
    def has_run(self) -> bool:
        """Return whether a message has ended."""
        return any(buffer.ended for buffer, _ in self._lanes)

    @property
    def busy(self) -> bool:
        """Return whether a message waits or runs here, or has been refused by a limit and comes again soon."""
        if self._limiting.waits() and not self.spent:
            return True
        return bool(self._behind) or any(buffer.waiting or buffer.active for buffer, _ in self._lanes)

    @property
    def next_at(self) -> float | None:
        """Return when a lane that its limits hold back may be claimed for again, by the monotonic clock."""
        return self._limiting.next_at

    def claim(self) -> bool:
        """Claim what the lanes want, except what is paused: one queue after another, where they have an order.

        Returns whether it kept anything. While no backlog is left, one call asks all queues, for no more than there are
        hands.
        """
        queues = self._queues
        was_behind, self._backlog = self._backlog, True
        self._found = False
        round_ = DispatchPass(self._lanes)
        skipped = was_behind and len(queues) > 1 and self._claim_in_order(queues, round_)
        if not self._found:  # the broker waits for what the last call asks for
            asked = self._ask(self._lanes, round_, queues[:-1] if was_behind else ())
            if not was_behind and len(queues) > 1:
                asked = {
                    buffer: min(asked[buffer], max(buffer.at_once(hands.free), 1)) for buffer, hands in self._lanes
                }
            self.wanted, self.left_out = any(asked.values()), not all(asked.values())
            if self.wanted:
                self._found = self._claim_of(queues, asked, round_)
        if self._found or self.wanted:
            self._backlog = skipped or round_.is_behind
        round_.end()
        if self._found:  # else another order, over and over until there is a hand, would give all the same chance
            self._queues = self._order()
        return self._found

    def _claim_in_order(self, queues: Sequence[str], round_: DispatchPass) -> bool:
        """Claim from each queue in its turn that has something due. Return whether one was left out for want of a hand.

        A look tells which queues have something due: with a hundred queues and a hundred handlers, each claim would
        otherwise ask for 10,000 pairs.
        """
        wants = self._ask(self._lanes, round_, ())
        if not any(wants.values()):
            return False
        due = self._due_lanes()
        queues_of: dict[PrefetchBuffer, set[str]] = {buffer: set() for buffer in wants}
        for queue, buffers in due.items():
            for buffer in buffers:
                queues_of[buffer].add(queue)
        for buffer in wants:
            buffer.backlog &= queues_of[buffer]
        round_.add_empty([buffer for buffer in wants if wants[buffer] and not queues_of[buffer]])
        skipped = False
        for place, queue in enumerate(queues):
            if queue in due:
                asked = self._ask(due[queue].items(), round_, queues[:place])
                if any(asked.values()):
                    self._found |= self._claim_of([queue], dict.fromkeys(wants, 0) | asked, round_)
                else:
                    skipped = True
        return skipped

    def _due_lanes(self) -> dict[str, dict[PrefetchBuffer, Executor]]:
        """Return, for each queue, the lanes for which anything is due there, except what is paused."""
        due: dict[str, dict[PrefetchBuffer, Executor]] = {}
        for queue, key in sorted(self._due_pairs(self._places), key=self._places.__getitem__):
            if not (self._pauses and self._pauses.cover(queue, key)):
                buffer, hands = self._hands_of[key]
                due.setdefault(queue, {})[buffer] = hands
        return due

    def _ask(
        self, buffers: Collection[tuple[PrefetchBuffer, Executor]], round_: DispatchPass, before: Collection[str]
    ) -> dict[PrefetchBuffer, int]:
        for buffer, _ in self._lanes:
            if self._limiting.is_closed(buffer):
                buffer.backlog.clear()
        wants, room = round_.wants(buffers, before), self._room()
        return {buffer: min(wanted, room, self._limiting.room(buffer)) for buffer, wanted in wants.items()}

    def _claim_of(self, queues: Sequence[str], asked: Mapping[PrefetchBuffer, int], round_: DispatchPass) -> bool:
        """Claim from these queues, in one call, and deal out what comes. Return whether it keeps anything."""
        buffers = self._in_turn(asked)
        wants = self._wants(queues, asked, buffers)
        sent_at = monotonic()
        claims = self._claim(wants)
        given, foreign = self._deal(claims, sent_at, queues)
        found = bool(foreign)
        if not claims.left:
            round_.add_empty([buffer for buffer in asked if asked[buffer]], queues or [""])
        for place, queue in enumerate(queues or [""]):
            there = [each for each in buffers if (queue, each[0]) in given]
            most = _most_to_keep(there, asked, round_, queues[:place])
            for buffer, hands in buffers if claims.left else there:
                leases = given.get((queue, buffer), [])
                once, others = _parted(leases)
                kept = self._keep(buffer, hands, once, others, most.get(buffer, 0))
                found |= kept > 0  # a lease that is given back at once would come again at once
                if asked[buffer]:
                    left = claims.left or kept < len(leases)
                    filled = len(leases) >= asked[buffer]
                    round_.add(buffer, hands, queue, kept, filled=filled, left=left, once=bool(once))
                    if filled or (left and len(queues) == 1):
                        buffer.backlog.add(queue)
                    elif not left:  # else any of those that were asked together may have more
                        buffer.backlog.discard(queue)
        self._bury(foreign)
        self._unstarted_events.tell(claims.buried, claims.ghosts)
        return found

    def _in_turn(self, asked: Mapping[PrefetchBuffer, int]) -> list[tuple[PrefetchBuffer, Executor]]:
        """Return the lanes in the order in which they are served.

        First come those that kept nothing for longest, and among equals those that want little. One call may not give
        all that is wanted, and may give more than there are hands: lanes with a backlog would leave nothing for the
        others.
        """
        return sorted(self._lanes, key=lambda each: (self._kept_at.get(each[0], 0.0), asked[each[0]]))

    def _wants(
        self,
        queues: Sequence[str],
        asked: Mapping[PrefetchBuffer, int],
        buffers: Sequence[tuple[PrefetchBuffer, Executor]],
    ) -> list[ClaimRequest]:
        """Return what to claim from these queues: first queues first, and within a queue in the order of `buffers`.

        Nothing where all is paused: then the broker sleeps until it hears of a resume, not until a message is due.
        """
        asking = [(buffer, asked[buffer], buffer.at_once(hands.free)) for buffer, hands in buffers if asked[buffer]]
        if queues:
            wants = [
                ClaimRequest(queue, key, count, at_once)
                for queue in queues
                for buffer, count, at_once in asking
                for key in buffer.keys.get(queue, ())
            ]
        else:
            wants = [ClaimRequest(*pair, count, at_once) for buffer, count, at_once in asking for pair in buffer.sets]
        return [want for want in wants if not self._pauses.cover(want.queue, want.key)] if self._pauses else wants

    def close(self) -> None:
        """Claim no more, and give back the leases that no hand has started. Handlers that run, run on."""
        self._closed = True
        self.release_unstarted(older_than_s=0)

    def release_unstarted(self, older_than_s: float = UNSTARTED_S) -> None:
        """Give back the leases that were claimed over `older_than_s` ago and that no hand has started."""
        claimed_before = monotonic() - older_than_s
        self._settler.release(self._take_behind(lambda lease: lease.claimed_at < claimed_before))
        unstarted = [lease for buffer, _ in self._lanes for lease in take_unstarted(buffer, claimed_before)]
        if unstarted:
            self._settler.release(unstarted)
            for buffer, _ in self._lanes:
                buffer.note_stall()

    def start_behind(self) -> None:
        """Start the leases that waited because an earlier lease of the same id still ran here, once it has ended.

        A worker that was given up for dead, but lives, may claim a message that its own thread still runs.
        """
        if not self._behind:
            return
        running = self._leases.running_ids()
        for lease in self._take_behind(lambda lease: lease.claimed.id not in running):
            lease.buffer.leases.append(lease)
            _, hands = self._hands_of[lease.buffer.handler.key]
            hands.offer(lease.buffer)

    def _take_behind(self, is_meant: Callable[[Lease], bool]) -> list[Lease]:
        taken = [lease for lease in self._behind if is_meant(lease)]
        self._behind = [lease for lease in self._behind if lease not in taken]
        return taken

    def release_paused(self) -> None:
        """Give back the leases that no hand has started and that are paused now."""
        if self._pauses:
            for buffer, _ in self._lanes:
                self._settler.release(take_paused(buffer, self._pauses.cover))

    def _room(self) -> int:
        if self._closed:
            return 0
        return BATCH if self._most is None else self._most - self._count_kept()

    def _count_kept(self) -> int:
        """Return how many messages were kept so far, except those that were given back: they have not run."""
        ended = {lease for lease in self._kept if lease.ended}
        self._run += sum(not lease.released for lease in ended)
        self._kept = [lease for lease in self._kept if lease not in ended and not lease.released]
        return self._run + len(self._kept)

    def _deal(
        self, claims: Claims, sent_at: float, queues: Sequence[str]
    ) -> tuple[dict[tuple[str, PrefetchBuffer], list[Lease]], list[Lease]]:
        # The claim's time is the server's of a moment later, so the clock made of both is never behind the server's.
        clock_ms = claims.now_ms - sent_at * 1000
        held_until = sent_at + self._leases.hold_s
        given: dict[tuple[str, PrefetchBuffer], list[Lease]] = {}
        foreign: list[Lease] = []
        any_lane, _ = self._lanes[0]  # a foreign message runs in no lane
        for claimed in claims.messages:
            found = self._hands_of.get(claimed.header.key) if claimed.header else None
            buffer = found[0] if found else any_lane
            leases = given.setdefault((_queue_of(claimed, queues), buffer), []) if found else foreign
            leases.append(Lease(claimed, buffer, sent_at, held_until, clock_ms))
        return given, foreign

    def _bury(self, foreign: list[Lease]) -> None:
        self._leases.add(foreign)
        for lease in foreign:
            transition = attempt.bury_foreign(lease.claimed)
            self._settler.add(lease, transition)
            self._unstarted_events.tell([buried_info(transition)])

    def _keep(self, buffer: PrefetchBuffer, hands: Executor, once: list[Lease], others: list[Lease], most: int) -> int:
        """Deal out what a lane can take, at most `most`, and give back the rest. Return how many it keeps.

        More at-most-once messages may have come than hands are free: a lane asks each of its (queue, key) pairs for all
        that it wants, because any of them may have something, and lanes share hands.
        """
        if not once and not others:
            return 0
        at_once = buffer.at_once(hands.free)
        leases = [*once[:at_once], *others]
        kept = leases[: min(self._room(), most)]
        if kept:
            self._kept_at[buffer] = monotonic()
        surplus = [*leases[len(kept) :], *once[at_once:]]
        running = self._leases.running_ids()
        self._leases.add([*kept, *surplus])
        self._settler.release(surplus)
        refused = self._limiting.admit(buffer, kept)
        self._settler.put_off(refused)
        self.left_out |= bool(refused)
        kept = [lease for lease in kept if lease not in refused]
        if self._most is not None:
            self._kept += kept
        self._behind += [lease for lease in kept if lease.claimed.id in running]
        buffer.leases.extend(lease for lease in kept if lease.claimed.id not in running)
        hands.offer(buffer)
        return len(kept)


def _parted(leases: list[Lease]) -> tuple[list[Lease], list[Lease]]:
    """Return the at-most-once leases, and the others."""
    once: list[Lease] = []
    others: list[Lease] = []
    for lease in leases:
        (once if is_at_most_once(lease.claimed.header, lease.buffer.handler) else others).append(lease)
    return once, others


def _most_to_keep(
    buffers: Sequence[tuple[PrefetchBuffer, Executor]],
    asked: Mapping[PrefetchBuffer, int],
    round_: DispatchPass,
    before: Collection[str],
) -> dict[PrefetchBuffer, int]:
    """Return how many leases of one queue each lane keeps: of a later queue, only for hands that earlier ones left."""
    if before and buffers:
        return round_.wants(buffers, before)
    return {buffer: asked[buffer] if buffer.handler.limits else BATCH for buffer, _ in buffers}


def _queue_of(claimed: Claimed, queues: Sequence[str]) -> str:
    """Return the one of the queues asked together that a message counts for; '' where they have no order."""
    if not queues or claimed.header is None:
        return ""
    return claimed.header.queue if claimed.header.queue in queues else queues[-1]
