"""The leases of this process and their permits: renew each in time, or give it up in time."""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress, cycle, groupby
from operator import attrgetter
from time import monotonic
from typing import Any

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import BATCH, Backend, CancelRequest, Claimed, PermitRequest, pages
from django_delayq.worker.logs import OutageLog, guarded

HOLD = 0.8
"""The fraction of a lease's length for which this process holds it, from when its last good renewal was sent.

After that the process gives the lease up, before it runs out and another worker may have it.
"""
LONGEST_PAUSE_S = 5.0
"""The longest time between renewals, which are otherwise due after a third of the lease.

They also send the heartbeats that keep a RabbitMQ connection open while a worker winds down.
"""


KEPT_S = 1.0
"""How long, in seconds, a block keeps permits that none of its messages uses.

Others may have to wait for them so long. With less, who seldom needs a permit would take a new one each time.
"""
LOOK_S = 0.25
"""The time, in seconds, from one look for unused permits to the next: few calls release those of many blocks."""
BLOCK_S, LONGEST_BLOCK_S = 2.0, 10.0
"""How long, in seconds, a block takes new leases, and how long it does if it has few permits.

Later ones ask for a new block, so that others get a chance.
"""

PermitCall = Callable[[Sequence[PermitRequest]], None]
"""A call about permits of one key."""


@dataclass(slots=True, eq=False)
class Lease:
    """The right to work on one message, as this process knows it. Times in seconds are monotonic.

    `held_until` is when this process gives the lease up, unless a renewal puts it off. `clock_ms` plus the monotonic
    time in milliseconds is the time of the authoritative clock, or a little ahead of it.
    """

    claimed: Claimed
    handler: Handler[Any, Any]
    claimed_at: float
    held_until: float
    clock_ms: float
    started_at: float = 0.0
    ended: bool = False
    """Whether its handler has ended."""
    released: bool = False
    """Whether it was released unstarted. Set before `ended`, because every other lease that has ended counts as run."""
    lost: bool = False
    """Whether somebody else took the lease away, or this worker cut it short because it stops."""
    abandoned: bool = False
    """Whether its handler was stopped, or told to stop, because the lease could not be renewed in time."""
    interrupted: bool = False
    """Whether this worker itself ended the lease, because the worker stops."""
    maybe_settled: bool = False
    """Whether its handler ended in a worker process that then died, so that the lease may be settled already."""
    overdue: bool = False
    """Whether a log line has said that the handler runs past its time-out."""
    cancel: Callable[[], object] | None = None
    """A function that stops the handler because the lease is no longer held; None if nothing can stop it."""
    cancel_request: CancelRequest | None = None
    """The request to cancel the message, once a renewal or a settlement has told of it."""
    on_cancel_request: Callable[[], object] | None = None
    """A function that stops the handler because of such a request; None if it must notice the request by itself."""
    progress: str = ""
    """How far the handler is, as it last said (`write_progress` in core/message.py)."""
    written_progress: str = ""
    """The progress that the last good renewal wrote."""
    permit_request: PermitRequest | None = None
    """The request that got the lease its permit; None if its handler has no limits."""
    block: "Block | None" = None
    """The block whose permits the lease shares with others; None if its permit is its own, or it has none."""
    start_until: float = math.inf
    """Until when a start that was taken ahead may be used."""

    @property
    def holds_up(self) -> bool:
        """Return whether others may wait for the permit of this lease."""
        request, block = self.permit_request, self.block
        return request is not None and request.most is not None and (block is None or block.is_tight)

    def may_start(self, now: float) -> bool:
        """Return whether its handler may start: the lease, its permit and its start are held."""
        is_held = not self.lost and self.held_until > now and self.start_until > now
        return is_held and (self.block is None or self.block.held_until > now)

    def is_held(self) -> bool:
        """Return whether this process may still act on the message."""
        return not self.lost and not self.abandoned and monotonic() < self.held_until

    def check_held(self) -> bool:
        """Return `is_held()` to a handler that asks.

        Once it has returned False, the attempt counts as abandoned, because the handler may stop half-way.
        """
        if not self.is_held():
            self.abandoned = True
        return not self.abandoned

    def is_cancelled(self) -> bool:
        """Return whether somebody has asked to cancel the message."""
        return self.cancel_request is not None

    def note_progress(self, written: str) -> None:
        """Keep how far the handler is, for the next renewal."""
        self.progress = written

    @property
    def runs(self) -> bool:
        """Return whether the handler runs in this process, whatever became of the lease."""
        return self.started_at > 0 and not self.ended

    def now_ms(self) -> int:
        """Return the time of the authoritative clock now."""
        return self.ms_of(monotonic())

    def ms_of(self, at: float) -> int:
        """Return the time of the authoritative clock at the monotonic time `at`."""
        return int(self.clock_ms + at * 1000)

    @property
    def timeout_s(self) -> float:
        """Return how many seconds the handler may run: the time-out of the message, or else of its handler.

        For a run of many messages that of the handler holds.
        """
        header = self.claimed.header
        of_message = header.timeout_ms if header and self.handler.batch is None else None
        return (self.handler.timeout_ms if of_message is None else of_message) / 1000

    def is_over_time(self) -> bool:
        """Return whether the handler has run for longer than it may."""
        return monotonic() >= self.started_at + self.timeout_s


@dataclass(slots=True, eq=False)
class Block:
    """Permits of one (key, value), and the leases of one buffer that share them.

    A buffer runs at most so many messages at once. As many permits are enough for any number of its leases, and fewer
    permits are enough for as many leases. So permits are neither acquired nor released for each message.

    A block keeps permits that no lease needs for `KEPT_S`, for its next leases, but no more of them than `most_kept`.
    While it has no more than that it lasts longer, because most of the permits are others'.
    """

    most_kept: int
    began_at: float
    hold_s: float
    renewed_at: float
    """The earliest time at which one of its permits may have been acquired or renewed last."""
    requests: list[PermitRequest] = field(default_factory=list)
    """The requests that got the permits."""
    leases: set[Lease] = field(default_factory=set)
    used_at: float = 0.0
    """When a lease came or went last."""
    named: set[int] = field(default_factory=set)
    """The tokens of the permits that running handlers name in the journal of this process, if it has one."""

    @property
    def held_until(self) -> float:
        """Return until when this process holds the permits, unless a renewal puts it off. Others may have them then."""
        return self.renewed_at + self.hold_s

    @property
    def is_tight(self) -> bool:
        """Return whether the end of a lease may free a permit, because none is kept for the next lease."""
        return len(self.requests) > max(len(self.leases) - 1, self.most_kept)

    @property
    def until(self) -> float:
        """Return until when it takes new leases, if its permits are renewed."""
        return self.began_at + (LONGEST_BLOCK_S if len(self.requests) <= self.most_kept else BLOCK_S)

    @property
    def kept_until(self) -> float:
        """Return until when it keeps permits that no lease needs."""
        return min(self.used_at + KEPT_S, self.until)

    def take_surplus(self, now: float) -> list[PermitRequest]:
        """Take out the permits that no lease needs, except those that are kept, and return them."""
        needed = max(len(self.leases), self.most_kept if now < self.kept_until else 0)
        requests = self.requests
        if self.named:  # what the supervisor may have to renew stays
            # Not sorted in place: meanwhile the list would be empty, and others read it without the lock.
            requests = sorted(requests, key=lambda request: request.token not in self.named)
        self.requests = requests[:needed]
        return requests[needed:]


class LeaseLog:
    """A log of this process's leases, for its supervisor. This base class, for a worker without one, keeps nothing."""

    def lease(self, leases: Iterable[Lease]) -> None:
        """Note new leases, before any handler starts."""

    def forget(self, leases: Iterable[Lease]) -> None:
        """Note that leases were settled, lost, or left to lapse."""

    def tick(self) -> None:
        """Note that the threads of this process run: no handler holds the interpreter's lock."""

    def held_until(self, lease: Lease) -> float:
        """Return until when (in monotonic seconds) another process has renewed a lease for this one; 0 if none has."""
        return 0.0


class Leases:
    """The leases of this process, with a thread that renews them and one that gives up a lease not renewed in time.

    Giving a lease up stops its handler, where that is possible. There are two threads because a renewal may hang, and
    meanwhile no handler may run on past its lease. A lease that was given up is still renewed: because every claim
    changes the token, the answer tells whether another worker has taken it.

    The answer to a renewal also tells whether somebody has asked to cancel the message.
    """

    def __init__(self, backend: Backend, lease_ms: int, outage_log: OutageLog, log: LeaseLog | None = None) -> None:
        self._backend = backend
        self._log = log or LeaseLog()
        self._outage_log = outage_log
        self._lease_ms = lease_ms
        self.hold_s = lease_ms / 1000 * HOLD
        self.join_s = lease_ms / 2000
        """How long after a renewal of its permits, in seconds, a block takes new leases.

        A lease that joins it is held until these would end, so it needs time for its own renewal.
        """
        self._held: set[Lease] = set()
        self._lost: set[Lease] = set()  # those whose handlers may still run
        self._lock = threading.Lock()
        self._some = threading.Event()  # set while something is held; without it the threads sleep
        self._closed = threading.Event()
        self._unreleased: deque[PermitRequest] = deque()  # permits of ended handlers that could not be released yet
        self._blocks: dict[Block, None] = {}  # those that have permits, or are about to
        self._blocks_lock = threading.Lock()
        self._away: set[str] = set()  # the keys whose limits could not be reached when last tried
        self._threads = [
            threading.Thread(target=self._renew_forever, name="delayq-renew", daemon=True),
            threading.Thread(target=self._cancel_expired_forever, name="delayq-give-up", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self, timeout: float) -> None:
        """End the threads, and wait at most `timeout` seconds for a renewal under way. Leases still held lapse.

        The process must not exit during a renewal: one that connects with TLS would use memory that OpenSSL has freed,
        and crash.
        """
        self._closed.set()
        self._some.set()
        for thread in self._threads:
            thread.join(timeout)

    def __len__(self) -> int:
        return len(self._held)

    def held(self) -> list[Lease]:
        """Return every lease that is held now."""
        with self._lock:
            return list(self._held)

    def running_ids(self) -> set[str]:
        """Return the ids whose handlers run in this process, including those whose leases are lost."""
        with self._lock:
            self._lost = {lease for lease in self._lost if lease.runs}
            return {lease.claimed.id for lease in self._held if lease.runs} | {lease.claimed.id for lease in self._lost}

    def add(self, leases: Iterable[Lease]) -> None:
        """Hold these leases, and renew them from now on."""
        leases = list(leases)
        self._log.lease(leases)
        with self._lock:
            self._held.update(leases)
        self._some.set()

    def remove(self, leases: Iterable[Lease]) -> None:
        """Stop renewing these leases: they were settled, or are left to lapse."""
        leases = list(leases)
        with self._lock:
            self._held.difference_update(leases)
        if any(lease.block for lease in leases):
            with self._blocks_lock:  # for those left to lapse; the next look releases their permits
                for lease in leases:
                    if lease.block is not None:
                        lease.block.leases.discard(lease)
        self._log.forget(leases)

    def lose(self, leases: Iterable[Lease]) -> None:
        """Drop leases that were taken away, or that this worker cuts short.

        Their handlers are stopped where possible. Their settlements are not sent, except one that an atomic handler's
        own transaction has written.
        """
        leases = list(leases)
        for lease in leases:
            lease.lost = True
        with self._lock:
            self._held.difference_update(leases)
            self._lost.update(leases)
        for lease in leases:
            _cancel(lease)
        self._log.forget(leases)

    def _renew_forever(self) -> None:
        pause = self._renew_s
        while not self._closed.wait(pause):
            if not self._has_work():
                self._some.clear()
                if self._has_work() or self._closed.is_set():
                    self._some.set()  # a lease came between the check and the clear
                self._some.wait()
                continue
            renewed = guarded(self._renew)
            pause = self._renew_s if renewed else min(self._lease_ms / 20_000, self._renew_s)

    @property
    def _renew_s(self) -> float:
        """Return the seconds from one renewal to the next."""
        return min(self._lease_ms / 3000, LONGEST_PAUSE_S)

    def _has_work(self) -> bool:
        return bool(self._held or self._unreleased or self._away or self._blocks)

    def _renew(self) -> bool:
        """Renew all leases and permits, page by page, and return whether every page was renewed.

        A page that fails must not keep the others from being renewed.
        """
        asked = pages(self.held(), BATCH)
        renewed = [self._renew_page(page) for page in asked]
        if all(renewed):
            self._outage_log.end("renewing")
        # Permits come last, because leases must not wait for them.
        answered = chain.from_iterable(compress(asked, renewed))
        return self._renew_permits(lease for lease in answered if not lease.lost) and all(renewed)

    def _renew_permits(self, leases: Iterable[Lease]) -> bool:
        """Renew permits, and release those that could not be released before. Return whether all of that was done.

        Keys that failed last time come last, and none begins once half the time to the next renewal is over: another
        session may keep a limit locked, and each try waits for it.
        """
        began_at = monotonic()
        with self._blocks_lock:
            self._unreleased += self._take_surplus()
        unreleased = [self._unreleased.popleft() for _ in range(len(self._unreleased))]  # no lease has these any more
        holders: dict[PermitRequest, Lease | Block] = {}
        blocks = [block for block in list(self._blocks) if not block.leases]
        for lease in leases:
            if (block := lease.block) is not None:
                blocks.append(block)
            elif (request := lease.permit_request) is not None and request.most is not None:
                holders[request] = lease
        blocks = list(dict.fromkeys(blocks))
        holders |= {request: block for block in blocks for request in list(block.requests)}
        work: list[tuple[str, Sequence[PermitRequest], PermitCall]] = [
            *((key, page, self._backend.limiter.release) for key, page in _by_key(unreleased)),
            *((key, page, partial(self._renew_page_of_permits, holders)) for key, page in _by_key(holders)),
        ]
        until = began_at + self._renew_s / 2
        left: set[str] = set()  # the keys of which not everything was done
        for key, page, call in sorted(work, key=lambda each: each[0] in self._away):
            if monotonic() > until or not self._try_permits(key, call, page):
                left.add(key)
                self._unreleased.extend(request for request in page if request not in holders)
        with self._blocks_lock:
            for block in blocks:
                is_renewed = all(request in holders and request.key not in left for request in block.requests)
                if is_renewed and began_at < block.held_until:
                    block.renewed_at = began_at
        if not left:
            self._away.clear()
            self._outage_log.end("keeping permits")
        return not left

    def _renew_page_of_permits(
        self, holders: Mapping[PermitRequest, Lease | Block], page: Sequence[PermitRequest]
    ) -> None:
        self._backend.limiter.renew(page, lease_ms=self._lease_ms)
        # If a permit was released just before, this renewal took it again, and nobody else would free it.
        again = [request for request in page if not _holds(holders[request], request)]
        if again:
            self._backend.limiter.release(again)

    def release_permits(self, leases: Iterable[Lease]) -> bool:
        """Release the permits of `leases`, and return whether there were any.

        Those that can't be released now are released with the next renewal. So whoever settles waits for a limit that
        another session keeps locked only once.
        """
        requests: list[PermitRequest] = []
        blocks: dict[Block, None] = {}
        now = monotonic()
        with self._blocks_lock:
            for lease in leases:
                request, block = lease.permit_request, lease.block
                lease.permit_request = lease.block = None
                if block is not None:
                    block.leases.discard(lease)
                    block.used_at = now
                    blocks[block] = None
                elif request is not None and request.most is not None:
                    requests.append(request)
            requests += self._take_surplus(blocks)
        self._release_requests(requests)
        return bool(requests)

    def join(self, block: Block, leases: Sequence[Lease], slots: int) -> int:
        """Let leases share the permits of a block, and return how many more permits it needs to run them in `slots`.

        If it needs any, the leases may not start before `share`. They are held for no longer than the permits last.
        """
        with self._blocks_lock:
            self._blocks[block] = None
            block.leases.update(leases)
            block.used_at = monotonic()
            for lease, request in zip(leases, cycle(block.requests or [None])):
                lease.block, lease.permit_request = block, request
                lease.held_until = min(lease.held_until, block.held_until)
            lacking = min(len(block.leases), slots) - len(block.requests)
        if not self._some.is_set():  # to set it again would cost each value a lock and a notification
            self._some.set()
        return min(max(lacking, 0), len(leases))

    def share(
        self,
        block: Block,
        granted: Iterable[PermitRequest],
        leases: Sequence[Lease],
        *,
        asked_at: float,
        has_enough: bool,
    ) -> Sequence[Lease]:
        """Add permits to a block that lacked some for leases. Return those that may not start, which leave it."""
        with self._blocks_lock:
            block.requests += granted
            block.renewed_at = min(block.renewed_at, asked_at)  # there may have been a renewal meanwhile
            surplus = 0 if has_enough else max(len(block.leases) - len(block.requests), 0)
            staying, leaving = leases[: max(len(leases) - surplus, 0)], leases[max(len(leases) - surplus, 0) :]
            for lease, request in zip(staying, cycle(block.requests)):
                lease.permit_request = request
            for lease in leaving:
                lease.block = lease.permit_request = None
                block.leases.discard(lease)
        return leaving

    def release_unused(self) -> float:
        """Release the permits that no lease has needed for a while. Return when to look again; infinity for never."""
        with self._blocks_lock:
            requests = self._take_surplus()
            ends = [block.kept_until for block in self._blocks if len(block.requests) > len(block.leases)]
        self._release_requests(requests)
        return max(min(ends), monotonic() + LOOK_S) if ends else math.inf

    def release_all_unused(self) -> None:
        """Release all permits that no lease needs, because this worker stops."""
        with self._blocks_lock:
            for block in self._blocks:
                block.most_kept = 0
            requests = self._take_surplus()
        self._release_requests(requests)

    def _take_surplus(self, blocks: Iterable[Block] | None = None) -> list[PermitRequest]:
        """Take the permits that are surplus out of some blocks, or of all. Forget the blocks that are empty."""
        now, surplus = monotonic(), []
        for block in list(self._blocks if blocks is None else blocks):
            if len(block.requests) > len(block.leases):
                surplus += block.take_surplus(now)
            if not block.requests and not block.leases:
                self._blocks.pop(block, None)
        return surplus

    def _release_requests(self, requests: Iterable[PermitRequest]) -> None:
        for key, page in _by_key(requests):
            if key in self._away or not self._try_permits(key, self._backend.limiter.release, page):
                self._unreleased.extend(page)
                self._some.set()

    def _try_permits(self, key: str, call: PermitCall, page: Sequence[PermitRequest]) -> bool:
        """Make a call about permits of a key, and return whether it worked."""
        try:
            call(page)
        except Exception as error:  # noqa: BLE001 - whatever it is, only another try can help
            self._outage_log.begin("keeping permits", error)
            self._away.add(key)
            return False
        self._away.discard(key)
        return True

    def _renew_page(self, page: Sequence[Lease]) -> bool:
        sent_at = monotonic()
        progress = {lease: lease.progress for lease in page if lease.progress != lease.written_progress}
        by_lease = {(lease.claimed.id, lease.claimed.token): written for lease, written in progress.items()}
        try:
            held = self._backend.queue.renew([lease.claimed for lease in page], self._lease_ms, by_lease)
        except Exception as error:  # noqa: BLE001 - whatever it is, only another try can help
            self._outage_log.begin("renewing", error)
            return False
        for lease, is_held in zip(page, held, strict=True):
            if is_held:
                if not _may_lack_permit(lease, sent_at):
                    lease.held_until = sent_at + self.hold_s
                lease.written_progress = progress.get(lease, lease.written_progress)
            if isinstance(is_held, CancelRequest) and lease.cancel_request is None:
                lease.cancel_request = is_held
                _stop(lease)
        # A lease that was settled meanwhile was removed, so it is not lost. An answer of None says that it is not known
        # yet.
        lost = [lease for lease, is_held in zip(page, held, strict=True) if is_held is False]
        self.lose(lease for lease in lost if lease in self._held)
        return True

    def _cancel_expired_forever(self) -> None:
        while not self._closed.wait(self._lease_ms / 20_000):
            self._some.wait()
            self._log.tick()
            guarded(self._cancel_expired)

    def _cancel_expired(self) -> None:
        now = monotonic()
        for lease in self.held():
            if lease.held_until <= now:
                lease.held_until = max(lease.held_until, self._log.held_until(lease))
            if lease.held_until <= now:
                _cancel(lease)


def _may_lack_permit(lease: Lease, now: float) -> bool:
    """Return whether others may have the permit of a lease that has not started: it was not renewed in time."""
    request, block = lease.permit_request, lease.block
    if request is None or request.most is None or lease.started_at:
        return False
    return (lease.held_until if block is None else block.held_until) <= now


def _stop(lease: Lease) -> None:
    """Stop the handler of a message that somebody has asked to cancel, if anything can stop it."""
    stop = lease.on_cancel_request  # read once, as below
    if stop is not None:
        guarded(stop)


def _cancel(lease: Lease) -> None:
    cancel = lease.cancel  # read once: the end of the handler clears it
    if cancel is not None and not lease.abandoned:
        lease.abandoned = True
        guarded(cancel)


def _by_key(requests: Iterable[PermitRequest]) -> Iterator[tuple[str, Sequence[PermitRequest]]]:
    """Yield the requests page by page, each with its key."""
    for key, of_key in groupby(sorted(requests, key=_key_of), key=_key_of):
        for page in pages(list(of_key), BATCH):
            yield key, page


_key_of = attrgetter("key")


def _holds(holder: Lease | Block, request: PermitRequest) -> bool:
    return holder.permit_request == request if isinstance(holder, Lease) else request in holder.requests
