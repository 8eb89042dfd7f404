"""Keep to the limits over all workers: a claimed message starts with a permit, or is released for a while."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from time import monotonic
from typing import Any

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import BATCH, Backend, Claimed, PermitRequest, Throttled
from django_delayq.core import codec
from django_delayq.core.errors import DataMismatch, StoreUnavailable
from django_delayq.core.limits import SHARE_AHEAD, Limits, turns_later
from django_delayq.support.tokens import random_numbers
from django_delayq.worker.leases import KEPT_S, Block, Lease, Leases
from django_delayq.worker.logs import OutageLog
from django_delayq.worker.prefetch import PrefetchBuffer
from django_delayq.worker.starts import ALONE_S, REMEMBERED_S, StartBlock

AWAY_MS, AWAY_SHARE = 1_000, 5
"""How long a message with limits waits if the limiter can't be asked: at least this, and so many times as long as the
try took. The loop waits for each try, and needs most of its time for what has other limits or none.
"""
AGAIN_S = 10.0
"""How long after a failed try for another handler, or for a value of it, an answer does not end the outage."""

CLOSED_MS = 5_000
"""The longest that a buffer is closed for a line.

The wait may be a stranger's, who can write to Redis, and a permit may be free long before it is over.
"""

ROUNDED_MS = 2
"""A refused message is due at most this long (in ms) after its wait is over, because due times are rounded up."""


Values = Mapping[Lease, tuple[str, str]]
"""The values of `concurrency_key` and `rate_key` of leases."""


class Limiter:
    """The part of a worker that asks for permits, and remembers for which buffers nothing may start for now.

    Nothing is claimed for such a buffer until its wait is over. Otherwise a backlog would be claimed and released over
    and over.
    """

    def __init__(self, backend: Backend, leases: Leases, lease_ms: int, outage_log: OutageLog) -> None:
        self._backend = backend
        self._leases = leases
        self._held = leases.held
        self._lease_ms = lease_ms
        self._outage_log = outage_log
        self._closed_until: dict[PrefetchBuffer, float] = {}
        self._refused: dict[Lease, int] = {}  # refused, and not settled when last looked at; with their waits
        self._blocks: dict[tuple[PrefetchBuffer, str], Block] = {}
        self._starts: dict[tuple[PrefetchBuffer, str], StartBlock] = {}
        self._forget_at = 0.0  # when to forget starts of values that are not used any more
        self._tight_until: dict[PrefetchBuffer, float] = {}
        self._look_at = math.inf  # when to look for permits that nothing uses
        self._last_at = 0.0
        self._failed = "", 0.0  # for which handler the limiter could not be asked last, and when

    def free_permits(self, buffers: Iterable[PrefetchBuffer]) -> dict[str, int]:
        """Return how many more messages the limits may let start, by key of the handler.

        Handlers without limits are left out.
        """
        return {
            buffer.handler.key: self._free_permits_of(buffer, buffer.handler.limits)
            for buffer in buffers
            if buffer.handler.limits is not None
        }

    def _free_permits_of(self, buffer: PrefetchBuffer, limits: Limits) -> int:
        if self.is_closed(buffer):
            return 0
        if limits.most_of_all is None or buffer.is_roomy:
            return BATCH
        # A message that has ended holds its permit until it is settled.
        holders = [
            lease
            for lease in self._held()
            if lease.handler is buffer.handler and (lease.permit_request is not None or lease.ended)
        ]
        return max(limits.most_of_all - len(holders), 0)

    def is_closed(self, buffer: PrefetchBuffer) -> bool:
        """Return whether no message of a buffer may start for now, so that nothing is claimed for it."""
        return monotonic() < self._closed_until.get(buffer, 0.0)

    @property
    def next_at(self) -> float:
        """Return when the next closed buffer opens again, or permits may be unused; infinity for never."""
        now = monotonic()
        return min([self._look_at, *(until for until in self._closed_until.values() if until > now)])

    def release_unused(self) -> None:
        """Release permits that this worker has kept for its next messages, once they are unused for a while."""
        if monotonic() >= self._look_at:
            self._look_at = self._leases.release_unused()
            self._blocks = {place: block for place, block in self._blocks.items() if block.requests or block.leases}

    def waits(self) -> bool:
        """Return whether a due message was refused and its wait is not over yet."""
        self._note_settled()
        return bool(self._refused) or monotonic() < self._last_at

    def admit(self, buffer: PrefetchBuffer, leases: Sequence[Lease]) -> dict[Lease, int]:
        """Ask for the permits of leases, and return the refused leases with their waits in milliseconds.

        The others may start: they have their permits, or need none.
        """
        limits = buffer.handler.limits
        if limits is None or not leases:
            return {}
        values = _values_of(limits, leases)
        if limits.max_concurrency is None:
            refusals = self._admit_at_rate(buffer, limits, values)
        elif limits.interval_us is None:
            refusals = self._admit_to_blocks(buffer, limits, values)
        elif buffer.is_roomy:
            refusals = self._admit_to_both(buffer, limits, values)
        else:  # one call for each message costs less where many are refused
            refusals = self._request(buffer, limits, values)
        self._note_room(buffer, limits, refused_any=bool(refusals))
        self._leave_alone(buffer, limits, refusals.values())
        refused = {lease: refusal.wait_ms for lease, refusal in refusals.items()}
        self._note_settled()
        self._refused |= refused
        return refused

    def _admit_to_both(self, buffer: PrefetchBuffer, limits: Limits, values: Values) -> dict[Lease, Throttled]:
        """Let leases share permits, and give starts to those that have one. Return the refusals."""
        refusals = self._admit_to_blocks(buffer, limits, values)
        permitted = {lease: pair for lease, pair in values.items() if lease not in refusals}
        early = self._admit_at_rate(buffer, limits, permitted)
        self._leases.release_permits(early)
        return refusals | early

    def _admit_to_blocks(self, buffer: PrefetchBuffer, limits: Limits, values: Values) -> dict[Lease, Throttled]:
        """Let leases share the permits of blocks. Ask only for the permits that these lack, and return the refusals."""
        by_value: defaultdict[str, list[Lease]] = defaultdict(list)
        for lease, (value, _) in values.items():
            by_value[value].append(lease)
        asked_at = monotonic()
        lacking: dict[Block, list[Lease]] = {}
        asked: list[tuple[Block, str]] = []
        for value, leases in by_value.items():
            block = self._block_of(buffer, limits, value, asked_at)
            if missing := self._leases.join(block, leases, buffer.concurrency):
                lacking[block] = leases
                asked += [(block, value)] * missing
        key, most = buffer.handler.key, limits.max_concurrency
        tokens = random_numbers(len(asked))  # one for each, because all leases of a claim share theirs
        requests = [PermitRequest(key, value, token, most) for (_, value), token in zip(asked, tokens, strict=True)]
        answers = self._acquire(requests) if requests else ()
        refused: defaultdict[Block, list[Throttled]] = defaultdict(list)
        granted: defaultdict[Block, list[PermitRequest]] = defaultdict(list)
        for (block, _), request, answer in zip(asked, requests, answers, strict=True):
            if answer is None:
                granted[block].append(request)
            else:
                refused[block].append(answer)
        refusals: dict[Lease, Throttled] = {}
        for block, leases in lacking.items():
            out = self._leases.share(block, granted[block], leases, asked_at=asked_at, has_enough=block not in refused)
            last = refused[block][-1] if out else None
            for n, (lease, answer) in enumerate(zip_longest(out, refused[block][: len(out)])):
                if (refusal := answer or last) is not None:
                    refusals[lease] = refusal if answer else refusal._replace(wait_ms=refusal.wait_ms + n)
        self._look_at = min(self._look_at, monotonic() + KEPT_S)
        return refusals

    def _note_room(self, buffer: PrefetchBuffer, limits: Limits, *, refused_any: bool) -> None:
        """Note whether messages of a buffer may be claimed ahead as if they had no limits."""
        if refused_any:
            self._tight_until[buffer] = monotonic() + ALONE_S
        most = limits.most_of_all  # enough for what this worker runs, and for a next block beside it
        is_enough = most is None or most >= 2 * buffer.concurrency
        if limits.interval_us is not None:
            is_enough &= limits.roomy_within_us > 0
        buffer.is_roomy = is_enough and monotonic() >= self._tight_until.get(buffer, 0.0)

    def _admit_at_rate(self, buffer: PrefetchBuffer, limits: Limits, values: Values) -> dict[Lease, Throttled]:
        """Give starts to leases, those taken ahead first. Ask for the others by value, and return the refusals."""
        by_value: defaultdict[str, list[Lease]] = defaultdict(list)
        for lease, (_, value) in values.items():
            by_value[value].append(lease)
        asked: list[tuple[StartBlock, Sequence[Lease], PermitRequest]] = []
        ahead = limits.ahead(is_roomy=buffer.is_roomy)
        for value, leases in by_value.items():
            block = self._starts_of(buffer, value)
            if rest := block.give(leases):
                asked.append((block, rest, block.request(buffer.handler.key, limits, value, len(rest), ahead)))
        answers = self._acquire([request for _, _, request in asked]) if asked else ()
        refusals: dict[Lease, Throttled] = {}
        for (block, rest, request), answer in zip(asked, answers, strict=True):
            granted = request.starts if answer is None else answer.starts
            refused = block.fill(rest, granted, is_refused=answer is not None)
            if answer is not None:
                refusals |= {lease: turns_later(answer, turns, request) for turns, lease in enumerate(refused)}
        return refusals

    def _starts_of(self, buffer: PrefetchBuffer, value: str) -> StartBlock:
        if monotonic() >= self._forget_at:
            self._forget_at = (now := monotonic()) + REMEMBERED_S
            self._starts = {place: block for place, block in self._starts.items() if block.remembered_until > now}
        return self._starts.setdefault((buffer, value), StartBlock())

    def _block_of(self, buffer: PrefetchBuffer, limits: Limits, value: str, now: float) -> Block:
        place = buffer, value
        block = self._blocks.get(place)
        if block is not None and (block.requests or block.leases):
            if now < min(block.until, block.renewed_at + self._leases.join_s):
                return block
            block.most_kept = 0  # the new one keeps permits in its place
        block = self._blocks[place] = Block(
            (limits.max_concurrency or 0) // SHARE_AHEAD, began_at=now, hold_s=self._leases.hold_s, renewed_at=now
        )
        return block

    def _request(self, buffer: PrefetchBuffer, limits: Limits, values: Values) -> dict[Lease, Throttled]:
        """Ask for a permit and a start of each lease, note what is granted, and return the refusals."""
        refusals: dict[Lease, Throttled] = {}
        key, most, burst, within_us = buffer.handler.key, limits.max_concurrency, limits.burst, limits.within_us
        requests = [
            PermitRequest(key, value, token, most, limits.interval_us, rate_value, burst, within_us)
            for (value, rate_value), token in zip(values.values(), random_numbers(len(values)), strict=True)
        ]
        start_until = monotonic() + limits.within_us / 1_000_000 if limits.within_us else math.inf
        answers = self._acquire(requests) if requests else ()
        for lease, request, refusal in zip(values, requests, answers, strict=True):
            if refusal:
                refusals[lease] = refusal
            else:
                lease.permit_request, lease.start_until = request, start_until
        return refusals

    def _acquire(self, requests: Sequence[PermitRequest]) -> Sequence[Throttled | None]:
        asked_at, key = monotonic(), requests[0].key  # all are of one handler
        try:
            answers = self._backend.limiter.acquire(requests, lease_ms=self._lease_ms)
        except Exception as error:  # noqa: BLE001 - whatever it is, messages without limits go on
            self._outage_log.begin("asking for limits", error)
            self._failed = key, monotonic()
            took_ms = int((monotonic() - asked_at) * 1000)
            wait_ms = min(max(AWAY_MS, AWAY_SHARE * took_ms), CLOSED_MS)
            return [Throttled(wait_ms, of_key=True)] * len(requests)
        if failed := [answer.error for answer in answers if answer and answer.error]:
            self._outage_log.begin("asking for limits", StoreUnavailable(failed[0]))
            self._failed = "", monotonic()  # an answer for the rest of the key doesn't end it
        elif self._failed[0] == key or asked_at > self._failed[1] + AGAIN_S:
            self._outage_log.end("asking for limits")
        return answers

    def _leave_alone(self, buffer: PrefetchBuffer, limits: Limits, refusals: Iterable[Throttled]) -> None:
        waits_ms = [refusal.wait_ms for refusal in refusals if refusal.of_key]
        if waits_ms:
            longest_ms = max(CLOSED_MS, (limits.interval_us or 0) / 1000)
            self._closed_until[buffer] = monotonic() + min(*waits_ms, longest_ms) / 1000

    def _note_settled(self) -> None:
        """Start the waits of refused messages that are settled now.

        A wait begins with the settlement, which may take a while.
        """
        if self._refused:
            held = self._held()
            settled = [lease for lease in self._refused if lease not in held]
            waits_s = [(self._refused.pop(lease) + ROUNDED_MS) / 1000 for lease in settled]
            self._last_at = max([self._last_at, *(monotonic() + wait_s for wait_s in waits_s)])


def plain_data(claimed: Claimed, handler: Handler[Any, Any]) -> Any:
    """Return the data of a leased message as JSON values of its handler's version. Raises `DataMismatch`."""
    return codec.decode_data(handler.upgraded(claimed.body, claimed.header.version if claimed.header else None))


def _values_of(limits: Limits, leases: Sequence[Lease]) -> Values:
    """Return the values of the leases, in their order.

    Leave out those whose data can't be read. Such a message is buried instead of started.
    """
    if not limits.has_keys:
        return dict.fromkeys(leases, ("", ""))
    values = {}
    for lease in leases:
        with suppress(DataMismatch):
            values[lease] = limits.values_of(plain_data(lease.claimed, lease.handler))
    return values
