"""Claim due messages from one shard, or from many after a look at which of them have something due.

Wait sets are served in the order of the requests, and the oldest messages of each set first. A look asks every shard,
in one round trip, which sets have something due. Then a claim asks one shard, then two, four and so on, until it has
all that was requested. So a backlog costs one call a batch with any number of shards, and thinly spread messages take
few round trips.

Later claims use the same look while what it found is enough for them: until something else falls due, an earlier due
time is published, or a second is over. A worker that sleeps looks only in maintenance, at each shard in turn
(`PollOwnership`), and claims only when there is a reason to.
"""

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from django_delayq.brokers.base import BATCH, Alarm, Claimed, ClaimRequest, Claims, Pair, earliest, pages
from django_delayq.brokers.redis.client import (
    Argument,
    Call,
    Operation,
    Reply,
    TransientError,
    as_int,
    as_ms,
    ask,
    gather_available,
    split,
)
from django_delayq.brokers.redis.records import RS, US, is_newer, unpack_message, unpack_state
from django_delayq.brokers.redis.shards import CallCells, Keys, Shards, load, set_name
from django_delayq.brokers.redis.signing import UNSIGNED
from django_delayq.brokers.redis.waiter import SleepHint, Waiter
from django_delayq.brokers.shared_state import HEARTBEAT_MS
from django_delayq.core.requests import WorkerInfo
from django_delayq.support.logging import logger

MOST = 100
"""The most messages of one claim. lua/claim.lua has the same limit."""

MOST_SETS = 32
"""The most wait sets that one claim names."""


@dataclass(slots=True)
class Claimant:
    """The worker that claims, and how long its leases last."""

    worker: str
    lease_ms: int

    @property
    def padded(self) -> str:
        """Return the worker's name, padded so that a state exceeds 64 bytes.

        Redis keeps a hash of shorter values as a list, which it scans at each access.
        """
        return self.worker.ljust(40)


def claim(
    keys: Keys, cells: CallCells, requests: Mapping[str, ClaimRequest], by: Claimant
) -> Operation[tuple[Claims, int]]:
    """Claim from one shard. `requests` has a request for each of at most `MOST_SETS` wait sets, by name.

    Return the claims, and until when, by the server's clock, a worker with slots left may sleep.
    """
    token = secrets.randbits(62) + 1
    waits = [keys.waits + name for name in requests]
    counts = [n for request in requests.values() for n in (request.count, request.idle_slots)]
    cell = cells.take()
    call = Call(
        load("claim"),
        (keys.running, keys.msg, keys.state, keys.sets, keys.timer, keys.calls + cell, keys.count, *waits),
        (token, by.lease_ms, by.padded, keys.channel, keys.most_bytes, *counts),
    )
    try:
        (reply,) = yield [call]
    finally:
        cells.release((cell,))
    now, next_due, sleep, left = (int(float(value)) for value in reply[:4])
    claimed = Claims([], [], now, next_due if next_due >= 0 else None, bool(left))
    _read(reply[4:], token, by.worker, claimed, keys)
    return claimed, sleep


def claim_suspect(keys: Keys, cells: CallCells, requests: Sequence[ClaimRequest], by: Claimant) -> Operation[Claims]:
    """Claim one suspect of the requested wait sets, if one is due."""
    token = secrets.randbits(62) + 1
    names = [set_name(request.queue, request.key) for request in requests if request.count > 0]
    cell = cells.take()
    call = Call(
        load("claim_suspect"),
        (keys.running, keys.msg, keys.state, keys.suspect, keys.timer, keys.calls + cell, keys.count),
        (token, by.lease_ms, by.padded, keys.most_bytes, *names),
    )
    try:
        (reply,) = yield [call]
    finally:
        cells.release((cell,))
    claimed = Claims([], [], int(reply[0]), None)
    _read(reply[1:], token, by.worker, claimed, keys)
    return claimed


def _read(described: list[Reply], token: int, worker: str, claims: Claims, keys: Keys) -> None:
    values = iter(described)
    for member, due, message, state in zip(values, values, values, values, strict=True):
        if message and is_newer(message):
            _warn_of_newer(message.partition(US)[0].decode())
            continue
        try:
            name = member.decode()
        except ValueError:  # someone else wrote it: not run, and dropped by maintenance
            claims.without_body.append(member.decode(errors="replace"))
            continue
        if message:
            unfit = _unfit(member, message, keys)
            claimed = Claimed(name, token, as_ms(due), None, b"", worker=worker, unfit=unfit)
            if not unfit:
                claimed.header, claimed.body = unpack_message(message)
            if state:
                record = unpack_state(state)
                claimed.failures, claimed.crashes = record.failures, record.crashes
            claims.messages.append(claimed)
        elif name.startswith("\x1f"):
            queue, key, pk = name[1:].split("\x1f", 2)
            claims.alarms.append(Alarm(queue, key, pk))
        else:
            claims.without_body.append(name)


def _unfit(id: bytes, message: bytes, keys: Keys) -> str:
    """Return why a message must not be read; '' if it may be."""
    if message.startswith(RS):
        return _too_large(as_int(message[1:]), keys.most_bytes)
    is_forged = keys.checks_signatures and keys.signer is not None and not keys.signer.has_signed(id, message)
    return UNSIGNED if is_forged else ""


def _too_large(size: int, most: int) -> str:
    return (
        f"it takes {size} bytes in Redis, over the {most} that OPTIONS['max_data'] lets through, so it was not read; "
        "if it is yours, raise that, and rescue it"
    )


@cache
def _warn_of_newer(format: str) -> None:
    """Warn about messages of a later format, once for each format in a process."""
    logger.warning(
        "Messages of format %s wait here, which a later version of django-delayq has sent. They are left to workers of "
        "that version: start some.",
        format,
    )


# Which workers poll an idle shard of a cluster first. Each worker knows the others by their heartbeats, and ranks all
# workers for each node by rendezvous hashing (Thaler and Ravishankar, 1998). So all come to the same ranking without a
# coordinator, and a worker that joins, leaves or dies changes only its own part. Workers with a low rank poll less
# often. That makes nothing late, because a message that is due earlier wakes each worker that would sleep past it
# (docs/internals/wake-up.md). Polling finds messages of which no worker was notified.

ALONE_S = 1.0
"""How often a worker polls that knows of no other worker, or hears no publications. On a single server all workers poll
this often, because a look at all shards is one round trip."""

FIRST, FIRST_S = 3, 4.0
"""How many workers rank first, and how long each of them leaves a shard alone at most. That time is also less than a
third of a lease. If no worker maintains a shard for a third of a lease, lua/reclaim.lua believes that Redis hung; that
must not happen when two of the three workers have died."""

OTHERS_S = 30.0
"""How long a worker that does not rank first leaves a shard alone at most."""


class PollOwnership:
    """How often this worker polls each shard, given the other workers that it knows.

    It polls all shards every second until its first heartbeat, and while it hears no publications.
    """

    def __init__(self, shards: Sequence[Keys], place_of: Callable[[str], object], hears: Callable[[], bool]) -> None:
        self._shards = shards
        self._place_of = place_of
        self._hears = hears
        self._own: WorkerInfo | None = None
        self._last_seen: dict[str, float] = {}  # by the monotonic clock, of workers that serve all that this one serves

    def learn(self, worker: WorkerInfo, workers: Iterable[WorkerInfo], now_ms: int) -> None:
        """Note the other workers. `workers` is the reply to the heartbeat of `worker`, which is this one."""
        now = time.monotonic()
        self._own = worker
        self._last_seen = {
            other.name: now - (now_ms - other.seen_ms) / 1000
            for other in workers
            if other.name != worker.name and _serves_all(other, worker)
        }

    @property
    def are_several(self) -> bool:
        """Return whether several workers share the polling of a cluster."""
        return bool(self._others()) and self._place_of(self._shards[0].msg) is not None

    def spans_s(self, lease_ms: int) -> list[float]:
        """Return for each shard how many seconds this worker may leave it alone."""
        others = self._others() if self._hears() else []
        places = [self._place_of(keys.msg) if others else None for keys in self._shards]
        spans = {place: self._span_s(places.index(place), others, lease_ms) for place in set(places) - {None}}
        return [spans.get(place, ALONE_S) for place in places]

    def _others(self) -> list[str]:
        now = time.monotonic()
        return [name for name, seen_at in self._last_seen.items() if now - seen_at < HEARTBEAT_MS / 1000]

    def _span_s(self, place: int, others: Sequence[str], lease_ms: int) -> float:
        """Return for how many seconds this worker may leave the shards of a node alone.

        `place` is the number of the node's first shard. It stands for the node, because workers may know that by
        different addresses.
        """
        own = _weight(place, self._own.name) if self._own else b""
        rank = sum(_weight(place, other) > own for other in others)
        lease_s = lease_ms / 1000
        return max(min(FIRST_S, lease_s / 3 - 1) if rank < FIRST else min(OTHERS_S, lease_s * 2), ALONE_S)


def _weight(place: int, worker: str) -> bytes:
    return hashlib.blake2b(f"{place} {worker}".encode(), digest_size=8).digest()


def _serves_all(worker: WorkerInfo, of: WorkerInfo) -> bool:
    """Return whether a worker serves all queues and keys of another one."""
    return set(of.queues) <= set(worker.queues) and set(of.keys) <= set(worker.keys)


# Claims from all shards

FRESH_S = 0.001
"""The least seconds for which claims use a look at one shard. They use a look at n shards n times as long: so looks
cost the same with any number of shards, even if something falls due all the time."""

LONGEST_S = 1.0
"""How long claims use a look at most."""

MOST_DUE = 2_000
"""The most sets with something due that one call of lua/due.lua names. It takes Redis about a millisecond."""

SLACK_S = 1.0
"""How long after the next look a sleep may end, so that the look comes first."""

_Place = tuple[int, str]
"""A wait set: its shard and its name."""


class ShardLook(NamedTuple):
    """The answer of one shard to a look, at `now_ms` by its server's clock.

    `due` has the wait sets with something due, each with the due time of its oldest entry. `next_due_ms` is the
    earliest due time in the other sets.
    """

    now_ms: int
    next_due_ms: int | None
    due: dict[str, int]


@dataclass(slots=True)
class _DueSnapshot:
    """The result of the last look at all shards: the wait sets with something due, each with its oldest due time.

    Claims update it with the messages that they got.
    """

    names: frozenset[str]
    looked_at: float  # by the monotonic clock
    now_ms: int
    next_due_ms: int | None  # of what is not due yet
    due: dict[_Place, int]
    hints: dict[int, SleepHint]  # of each shard
    away: str = ""  # why some shards did not answer

    def falls_due(self, shard: int, at_ms: int | None) -> None:
        """Note that something is due in a shard at `at_ms`, or that the shard must be asked again then."""
        if at_ms is not None:
            hint = self.hints[shard]
            self.hints[shard] = hint._replace(sleep_ms=min(hint.sleep_ms, at_ms))
            self.next_due_ms = earliest(self.next_due_ms, at_ms)


class Demand:
    """How many messages a claim still wants: of each wait set, and in all (`left`, at most `MOST`).

    Several requests may be for the same set.
    """

    def __init__(self, requests: Sequence[ClaimRequest]) -> None:
        counts: dict[str, int] = {}  # faster than a Counter: many queues of many handlers are 10,000 sets
        idle_slots: dict[str, int] = {}
        self._sets: dict[str, tuple[str, str]] = {}
        for request in requests:
            if request.count > 0:
                name = set_name(request.queue, request.key)
                self._sets[name] = request.queue, request.key
                counts[name] = counts.get(name, 0) + request.count
                idle_slots[name] = idle_slots.get(name, 0) + max(request.idle_slots, 0)
        self._counts, self._idle_slots = Counter(counts), Counter(idle_slots)
        self.names = frozenset(self._sets)
        self._ranks = {name: rank for rank, name in enumerate(self._sets)}
        self.left = min(MOST, self._counts.total())

    def count(self, name: str) -> int:
        """Return how many messages of a set are still wanted."""
        return self._counts[name]

    def rank(self, name: str) -> int:
        """Return the position of a set in the requests. Sets with a lower one are served first."""
        return self._ranks[name]

    def requests(self) -> dict[str, ClaimRequest]:
        """Return a request for all that is still wanted of each set, by its name."""
        return {name: self.part(name, 0, 1) for name in self._sets}

    def part(self, name: str, nth: int, of: int) -> ClaimRequest:
        """Divide what is still wanted of a set into `of` even parts, and return a request for one of them.

        `nth` is its number, counted from 0.
        """
        return ClaimRequest(
            *self._sets[name], _part(self._counts[name], nth, of), _part(self._idle_slots[name], nth, of)
        )

    def fill(self, name: str, count: int) -> None:
        """Note that `count` messages were claimed, of a set as far as is known. They may be more than were wanted."""
        self.left -= count
        self._counts[name] = max(self._counts[name] - count, 0)  # below 0, lua/lib/share.lua would take all that is due
        self._idle_slots[name] = max(self._idle_slots[name] - count, 0)


def _part(number: int, nth: int, of: int) -> int:
    return number // of + (nth < number % of)


@dataclass(slots=True)
class ClaimPlanner:
    """The part of the backend that decides which shards and wait sets each claim asks, and sends the claims."""

    shards: Shards
    cells: CallCells
    waiter: Waiter
    ownership: PollOwnership
    _snapshot: _DueSnapshot | None = field(default=None, init=False)
    _names: frozenset[str] = field(default=frozenset(), init=False)

    def claim(self, requests: Sequence[ClaimRequest], by: Claimant) -> Operation[Claims]:
        """Claim at most `MOST` messages from all shards, and give the waiter hints about how long it may sleep."""
        demand = Demand(requests)
        self._names = demand.names
        self.waiter.before_claim(demand.names)
        if len(self.shards.all) == 1 and len(demand.names) <= MOST_SETS:
            return self._claim_in(self.shards.first, demand.requests(), by)
        return self._search(demand, by)

    def _claim_in(self, keys: Keys, requests: Mapping[str, ClaimRequest], by: Claimant) -> Operation[Claims]:
        claims, sleep_ms = yield from claim(keys, self.cells, requests, by)
        self.waiter.take_hints({keys.shard: SleepHint(time.monotonic(), claims.now_ms, sleep_ms)})
        return claims

    def due_pairs(self, pairs: Collection[Pair]) -> Operation[Collection[Pair]]:
        """Return the pairs that have something due, on the shards that can be reached.

        If very many wait sets have something due, return all pairs.
        """
        asked = [ask(Call(load("due"), (keys.sets,), (MOST_DUE,))) for keys in self.shards.all]
        looks, _ = split((yield from gather_available(asked)))
        if any(len(names) >= MOST_DUE for names in looks):
            return pairs
        due = {_pair_of(name) for names in looks for name in names}
        return due.intersection(pairs)

    def look(self, spans_s: Mapping[int, float]) -> Operation[None]:
        """Look at shards for what is due in the wait sets of the last claim, and give the waiter hints.

        `spans_s` has the shards, each with the seconds until this worker looks at it again.
        """
        self.waiter.before_look(spans_s)
        names, wakes = self._names, self.ownership.are_several
        looks = yield from gather_available(
            [_look_at(self.shards.all[shard], names, span_s, wakes=wakes) for shard, span_s in spans_s.items()]
        )
        hints = {}
        for (shard, span_s), look in zip(spans_s.items(), looks, strict=True):
            hint = _sleep_hint(look, span_s)
            has_due = not isinstance(look, TransientError) and look.due
            hints[shard] = hint._replace(sleep_ms=hint.now_ms) if has_due else hint
        self.waiter.take_hints(hints)

    def claim_suspect(self, requests: Sequence[ClaimRequest], by: Claimant) -> Operation[Claims]:
        """Claim one suspect, like the function `claim_suspect`, from the first shard that has one due."""
        ended: list[Claims | TransientError] = []
        for keys in self.shards.all:
            ended += yield from gather_available([claim_suspect(keys, self.cells, requests, by)])
            if isinstance(ended[-1], Claims) and ended[-1].messages:
                break
        found, _ = split(ended)
        return found[-1]

    def _search(self, demand: Demand, by: Claimant) -> Operation[Claims]:
        snapshot = self._recall(demand.names)
        has_looked = snapshot is None
        if snapshot is None:
            snapshot = yield from self._look(demand.names, by.lease_ms)
        given, behind = Claims([], [], snapshot.now_ms, snapshot.next_due_ms), set[int]()
        most = 1
        while demand.left > 0:
            asked = _requests_of(snapshot, demand, most)
            if not asked:
                # If nothing is known to be due, look, because the worker sleeps or ends after this claim.
                is_busy = bool(given.messages or given.alarms or snapshot.due)
                if has_looked or (is_busy and self._is_complete(snapshot, demand.names)):
                    break
                snapshot, has_looked = (yield from self._look(demand.names, by.lease_ms)), True
                continue
            claimed = yield from gather_available(
                [self._claim_in(self.shards.all[shard], some, by) for shard, some in asked.items()]
            )
            for (shard, some), result in zip(asked.items(), claimed, strict=True):
                if isinstance(result, TransientError):
                    _exclude(snapshot, shard, result)
                    continue
                _fill(snapshot, demand, shard, some, result)
                _merge_claims(given, result)
                (behind.add if result.more_available else behind.discard)(shard)
            most *= 2
        self._snapshot = snapshot
        self.waiter.take_hints(snapshot.hints)
        left = [at for (_, name), at in snapshot.due.items() if name in demand.names]
        given.messages.sort(key=lambda message: (message.due_ms, message.id))
        given.next_due_ms = earliest(given.next_due_ms, *left)
        given.more_available, given.away = bool(behind or left), snapshot.away
        return given

    def _recall(self, names: frozenset[str]) -> _DueSnapshot | None:
        """Return a copy of the last snapshot if it is fresh enough for a claim, else None."""
        snapshot = self._snapshot
        if snapshot is None or not names <= snapshot.names:
            return None
        snapshot = replace(snapshot, due=snapshot.due.copy(), hints=snapshot.hints.copy())
        is_fresh = time.monotonic() < snapshot.looked_at + FRESH_S * len(self.shards.all)
        return snapshot if is_fresh or self._is_complete(snapshot, names) else None

    def _is_complete(self, snapshot: _DueSnapshot, names: frozenset[str]) -> bool:
        """Return whether the sets that had nothing due at the look have nothing due now either, as far as is known."""
        age_s = time.monotonic() - snapshot.looked_at
        if age_s >= LONGEST_S or snapshot.away:
            return False
        if snapshot.next_due_ms is not None and snapshot.next_due_ms <= snapshot.now_ms + age_s * 1000:
            return False
        quiet = names.difference(name for _, name in snapshot.due)
        return all(self.waiter.heard_at(name) < snapshot.looked_at for name in quiet)

    def _look(self, names: frozenset[str], lease_ms: int) -> Operation[_DueSnapshot]:
        looked_at = time.monotonic()
        spans_s = self.ownership.spans_s(lease_ms)
        looks = yield from gather_available(
            [_look_at(keys, names, span_s) for keys, span_s in zip(self.shards.all, spans_s, strict=True)]
        )
        _, away = split(looks)
        snapshot = _DueSnapshot(names, looked_at, 0, None, {}, {}, away)
        for shard, (look, span_s) in enumerate(zip(looks, spans_s, strict=True)):
            snapshot.hints[shard] = _sleep_hint(look, span_s)
            if isinstance(look, TransientError):
                continue
            snapshot.now_ms = max(snapshot.now_ms, look.now_ms)
            snapshot.falls_due(shard, look.next_due_ms)
            snapshot.due.update({(shard, name): at for name, at in look.due.items()})
        return snapshot


def _pair_of(name: bytes) -> Pair:
    queue, _, key = name.decode(errors="replace").partition(":")
    return queue, key


def _look_at(keys: Keys, names: Iterable[str], span_s: float, *, wakes: bool = False) -> Operation[ShardLook]:
    """Look at these wait sets of a shard, for a worker that looks again after `span_s` seconds.

    With `wakes`, other workers are woken if anything is due.
    """
    arguments: Sequence[Argument] = (_longest_ms(span_s), keys.channel if wakes else "")
    look = ShardLook(0, None, {})
    looks = [
        Call(load("inspect"), (keys.sets, keys.timer), (*arguments, *page)) for page in pages(sorted(names), BATCH)
    ]
    for reply in (yield looks) if looks else ():
        next_due_ms = earliest(look.next_due_ms, int(reply[1]) if int(reply[1]) >= 0 else None)
        due = {name.decode(): as_ms(at) for name, at in zip(reply[2::2], reply[3::2], strict=True)}
        look = ShardLook(int(reply[0]), next_due_ms, {**look.due, **due})
    return look


def _sleep_hint(look: ShardLook | TransientError, span_s: float) -> SleepHint:
    """Return until when a worker may sleep as far as this shard is concerned, apart from what is due there already.

    It wakes at the next due time, and in any case soon after its next look, which is `span_s` seconds away. If the
    shard's node was away, it may sleep for `LONGEST_S`.
    """
    if isinstance(look, TransientError):
        return SleepHint(time.monotonic(), 0, round(LONGEST_S * 1000))
    until_ms = look.now_ms + _longest_ms(span_s)
    return SleepHint(time.monotonic(), look.now_ms, min(until_ms, look.next_due_ms or until_ms))


def _longest_ms(span_s: float) -> int:
    return round((span_s + SLACK_S) * 1000)


def _requests_of(snapshot: _DueSnapshot, demand: Demand, most: int) -> dict[int, dict[str, ClaimRequest]]:
    """Return the requests to send to at most `most` shards, by shard and by wait set.

    Together they ask for no more than `demand`. Sets of earlier requests come first. For one set, shards with older
    entries come first.
    """
    asked: dict[int, list[str]] = {}
    places = [place for place in snapshot.due if demand.count(place[1])]
    for shard, name in sorted(places, key=lambda place: (demand.rank(place[1]), snapshot.due[place])):
        if (shard in asked or len(asked) < most) and len(asked.setdefault(shard, [])) < MOST_SETS:
            asked[shard].append(name)
    sharing = Counter(name for names in asked.values() for name in names)
    nth: Counter[str] = Counter()
    left = demand.left
    requests: dict[int, dict[str, ClaimRequest]] = {}
    for shard, names in asked.items():
        for name in names:
            request = demand.part(name, nth[name], sharing[name])
            request.count = min(request.count, left)
            left -= request.count
            nth[name] += 1
            if request.count:
                requests.setdefault(shard, {})[name] = request
    return requests


def _fill(
    snapshot: _DueSnapshot, demand: Demand, shard: int, asked: Mapping[str, ClaimRequest], claims: Claims
) -> None:
    """Update the snapshot and the demand with the claims of a shard.

    A set that gave as many messages as were asked for may have more. Every other set has nothing due any more.
    """
    given = Counter(set_name(alarm.queue, alarm.key) for alarm in claims.alarms)
    for message in claims.messages:  # a message that can't be read does not say where it was
        of = message.header
        given[set_name(of.queue, of.key) if of else next(iter(asked))] += 1
    if not claims.more_available:  # the look found the next due times only of sets in which nothing was due
        snapshot.falls_due(shard, claims.next_due_ms)
    elif any(given[name] < one.count for name, one in asked.items()):  # its next due time is not known
        snapshot.falls_due(shard, claims.now_ms)
    for name, request in asked.items():
        demand.fill(name, given[name])
        if not claims.more_available or given[name] < request.count:
            del snapshot.due[shard, name]
        elif claims.next_due_ms is not None:
            snapshot.due[shard, name] = max(snapshot.due[shard, name], claims.next_due_ms)


def _exclude(snapshot: _DueSnapshot, shard: int, error: TransientError) -> None:
    """Drop all entries of a shard from the snapshot, because its node can't be reached. Keep the reason in `away`."""
    snapshot.away = str(error)
    snapshot.due = {place: at for place, at in snapshot.due.items() if place[0] != shard}


def _merge_claims(given: Claims, claims: Claims) -> None:
    given.messages += claims.messages
    given.alarms += claims.alarms
    given.without_body += claims.without_body
    given.now_ms = max(given.now_ms, claims.now_ms)
    given.next_due_ms = earliest(given.next_due_ms, claims.next_due_ms)
