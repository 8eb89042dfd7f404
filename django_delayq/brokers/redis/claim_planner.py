"""Claim from more wait sets than one claim names: look where something is due, then claim there.

The sets are served in the order of the wants, each with its oldest first. A look asks every shard in one round trip.
Claims ask one shard first, then two, four, … until every hand is full: a backlog costs one call a batch at any number
of shards, and thinly spread messages take few round trips. What a look saw serves the next claims too, as long as it
fills their hands. As with a sleep, that ends when something falls due, when a nearer due time is published, and after a
second. A worker that sleeps looks when it does upkeep, at each shard in its turn (owners.py), and claims only once
there is a reason to.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

from django_delayq.brokers.base import BATCH, ClaimRequest, Claims, Pair, earliest, pages
from django_delayq.brokers.redis.claim import MOST_SETS, Claimant, claim, claim_suspect
from django_delayq.brokers.redis.client import Argument, Call, Operation, TransientError, gather_available, split
from django_delayq.brokers.redis.demand import Demand
from django_delayq.brokers.redis.keys import Keys, set_name
from django_delayq.brokers.redis.poll_ownership import PollOwnership
from django_delayq.brokers.redis.records import as_int
from django_delayq.brokers.redis.scripts import load
from django_delayq.brokers.redis.shards import Shards
from django_delayq.brokers.redis.slots import Slots
from django_delayq.brokers.redis.waiter import SleepHint, Waiter

FRESH_S = 0.001
"""How long a look at one shard serves at least. A look at n shards serves n times as long, so that where something
falls due all the time looks cost the same at any number of shards."""

LONGEST_S = 1.0
"""How long a look serves at most."""

MOST_DUE = 2_000
"""How many sets with something due one look names: it takes Redis about a millisecond."""

SLACK_S = 1.0
"""How much longer than until the next look a sleep may last, so that the look comes first."""

_Place = tuple[int, str]
"""A wait set: its shard and its name."""


class _Look(NamedTuple):
    """The answer of one shard to a look.

    It has the time, when something is due next in sets where nothing is yet, and since when something is in the others.
    """

    now_ms: int
    next_due_ms: int | None
    due: dict[str, int]


@dataclass(slots=True)
class _DueSnapshot:
    """The sets with something due, and the due time of each one's oldest, as a look saw it and claims left it."""

    names: frozenset[str]
    looked_at: float  # by the monotonic clock
    now_ms: int
    next_due_ms: int | None  # of what is not due yet
    due: dict[_Place, int]
    rests: dict[int, SleepHint]  # of each shard
    away: str = ""  # why some shards did not answer

    def falls_due(self, shard: int, at_ms: int | None) -> None:
        """Note when something is due in a shard next, or when the shard is to be asked again."""
        if at_ms is not None:
            rest = self.rests[shard]
            self.rests[shard] = rest._replace(sleep_ms=min(rest.sleep_ms, at_ms))
            self.next_due_ms = earliest(self.next_due_ms, at_ms)


@dataclass(slots=True)
class ClaimPlanner:
    """The claims of one broker."""

    shards: Shards
    slots: Slots
    waiter: Waiter
    owners: PollOwnership
    _seen: _DueSnapshot | None = field(default=None, init=False)
    _names: frozenset[str] = field(default=frozenset(), init=False)

    def claim(self, wants: Sequence[ClaimRequest], by: Claimant) -> Operation[Claims]:
        """Claim from all shards, at most as many as one call gives.

        The sleeper is told how long a worker that has hands left may sleep.
        """
        hands = Demand(wants)
        self._names = hands.names
        self.waiter.before_claim(hands.names)
        if len(self.shards.all) == 1 and len(hands.names) <= MOST_SETS:
            return self._claim_in(self.shards.first, hands.wants(), by)
        return self._search(hands, by)

    def _claim_in(self, keys: Keys, wants: Sequence[ClaimRequest], by: Claimant) -> Operation[Claims]:
        claims, sleep_ms = yield from claim(keys, self.slots, wants, by)
        self.waiter.rest({keys.shard: SleepHint(time.monotonic(), claims.now_ms, sleep_ms)})
        return claims

    def due_pairs(self, pairs: Collection[Pair]) -> Operation[Collection[Pair]]:
        """Return those of the pairs of which anything is due, on the shards that can be reached.

        If very many sets have something due, these are all of the pairs.
        """
        looks, _ = split((yield from gather_available([_due_names(keys) for keys in self.shards.all])))
        if any(len(names) >= MOST_DUE for names in looks):
            return pairs
        due = {_pair_of(name) for names in looks for name in names}
        return due.intersection(pairs)

    def look_along(self, spans_s: Mapping[int, float]) -> Operation[None]:
        """Look at some shards for the sets last wanted, for a worker that looks there again after these spans."""
        self.waiter.before_look(spans_s)
        names, calls = self._names, self.owners.are_several
        looks = yield from gather_available(
            [_look_at(self.shards.all[shard], names, span_s, calls=calls) for shard, span_s in spans_s.items()]
        )
        rests = {}
        for (shard, span_s), look in zip(spans_s.items(), looks, strict=True):
            rest = _rest(look, span_s)
            has_due = not isinstance(look, TransientError) and look.due
            rests[shard] = rest._replace(sleep_ms=rest.now_ms) if has_due else rest
        self.waiter.rest(rests)

    def claim_suspect(self, wants: Sequence[ClaimRequest], by: Claimant) -> Operation[Claims]:
        """Claim one suspect, like `claims.claim_suspect`, from the first shard that has one due."""
        ended: list[Claims | TransientError] = []
        for keys in self.shards.all:
            ended += yield from gather_available([claim_suspect(keys, self.slots, wants, by)])
            if isinstance(ended[-1], Claims) and ended[-1].messages:
                break
        found, _ = split(ended)
        return found[-1]

    def _search(self, hands: Demand, by: Claimant) -> Operation[Claims]:
        seen = self._remembered(hands.names)
        has_looked = seen is None
        if seen is None:
            seen = yield from self._look(hands.names, by.lease_ms)
        given, behind = Claims([], [], seen.now_ms, seen.next_due_ms), set[int]()
        most = 1
        while hands.left > 0:
            asked = _most_due(seen, hands, most)
            if not asked:
                # Where nothing is known to be due it looks, because its worker sleeps or ends after it.
                is_busy = bool(given.messages or given.alarms or seen.due)
                if has_looked or (is_busy and self._is_all(seen, hands.names)):
                    break
                seen, has_looked = (yield from self._look(hands.names, by.lease_ms)), True
                continue
            claimed = yield from gather_available(
                [self._claim_in(self.shards.all[shard], some, by) for shard, some in asked.items()]
            )
            for (shard, some), result in zip(asked.items(), claimed, strict=True):
                if isinstance(result, TransientError):
                    _leave_out(seen, shard, result)
                    continue
                _take(seen, hands, shard, some, result)
                _add(given, result)
                (behind.add if result.left else behind.discard)(shard)
            most *= 2
        self._seen = seen
        self.waiter.rest(seen.rests)
        left = [at for (_, name), at in seen.due.items() if name in hands.names]
        given.messages.sort(key=lambda message: (message.due_ms, message.id))
        given.next_due_ms = earliest(given.next_due_ms, *left)
        given.left, given.away = bool(behind or left), seen.away
        return given

    def _remembered(self, names: frozenset[str]) -> _DueSnapshot | None:
        """Return what was seen, if it still serves: as a copy, because several threads may claim."""
        seen = self._seen
        if seen is None or not names <= seen.names:
            return None
        seen = replace(seen, due=seen.due.copy(), rests=seen.rests.copy())
        is_fresh = time.monotonic() < seen.looked_at + FRESH_S * len(self.shards.all)
        return seen if is_fresh or self._is_all(seen, names) else None

    def _is_all(self, seen: _DueSnapshot, names: frozenset[str]) -> bool:
        """Return whether nothing can have fallen due after the look in sets where nothing was due."""
        age_s = time.monotonic() - seen.looked_at
        if age_s >= LONGEST_S or seen.away:
            return False
        if seen.next_due_ms is not None and seen.next_due_ms <= seen.now_ms + age_s * 1000:
            return False
        quiet = names.difference(name for _, name in seen.due)
        return all(self.waiter.heard_at(name) < seen.looked_at for name in quiet)

    def _look(self, names: frozenset[str], lease_ms: int) -> Operation[_DueSnapshot]:
        looked_at = time.monotonic()
        spans_s = self.owners.spans_s(lease_ms)
        looks = yield from gather_available(
            [_look_at(keys, names, span_s) for keys, span_s in zip(self.shards.all, spans_s, strict=True)]
        )
        _, away = split(looks)
        seen = _DueSnapshot(names, looked_at, 0, None, {}, {}, away)
        for shard, (look, span_s) in enumerate(zip(looks, spans_s, strict=True)):
            seen.rests[shard] = _rest(look, span_s)
            if isinstance(look, TransientError):
                continue
            seen.now_ms = max(seen.now_ms, look.now_ms)
            seen.falls_due(shard, look.next_due_ms)
            seen.due.update({(shard, name): at for name, at in look.due.items()})
        return seen


def _due_names(keys: Keys) -> Operation[list[bytes]]:
    """Return the names of up to `MOST_DUE` sets of which something is due."""
    (names,) = yield [Call(load("due"), (keys.sets,), (MOST_DUE,))]
    return cast(list[bytes], names)


def _pair_of(name: bytes) -> Pair:
    queue, _, key = name.decode(errors="replace").partition(":")
    return queue, key


def _look_at(keys: Keys, names: Iterable[str], span_s: float, *, calls: bool = False) -> Operation[_Look]:
    """Look at a shard, for a worker that looks again after `span_s`. With `calls`, wake others if anything is due."""
    arguments: Sequence[Argument] = (_longest_ms(span_s), keys.channel if calls else "")
    look = _Look(0, None, {})
    looks = [Call(load("look"), (keys.sets, keys.timer), (*arguments, *page)) for page in pages(sorted(names), BATCH)]
    for reply in (yield looks) if looks else ():
        next_due_ms = earliest(look.next_due_ms, int(reply[1]) if int(reply[1]) >= 0 else None)
        due = {name.decode(): as_int(at) for name, at in zip(reply[2::2], reply[3::2], strict=True)}
        look = _Look(int(reply[0]), next_due_ms, {**look.due, **due})
    return look


def _rest(look: _Look | TransientError, span_s: float) -> SleepHint:
    """Return how long a worker may sleep that has no hand for what is due. A node that was away is asked again soon."""
    if isinstance(look, TransientError):
        return SleepHint(time.monotonic(), 0, round(LONGEST_S * 1000))
    until_ms = look.now_ms + _longest_ms(span_s)
    return SleepHint(time.monotonic(), look.now_ms, min(until_ms, look.next_due_ms or until_ms))


def _longest_ms(span_s: float) -> int:
    return round((span_s + SLACK_S) * 1000)


def _most_due(seen: _DueSnapshot, hands: Demand, most: int) -> dict[int, list[ClaimRequest]]:
    """Return what to want of each of at most `most` shards: in all no more than there are hands.

    The sets wanted first come first, and of each set the shards with its oldest.
    """
    asked: dict[int, list[str]] = {}
    places = [place for place in seen.due if hands.free(place[1])]
    for shard, name in sorted(places, key=lambda place: (hands.rank(place[1]), seen.due[place])):
        if (shard in asked or len(asked) < most) and len(asked.setdefault(shard, [])) < MOST_SETS:
            asked[shard].append(name)
    sharing = Counter(name for names in asked.values() for name in names)
    nth: Counter[str] = Counter()
    left = hands.left
    wants: dict[int, list[ClaimRequest]] = {}
    for shard, names in asked.items():
        for name in names:
            want = hands.share(name, nth[name], sharing[name])
            want.count = min(want.count, left)
            left -= want.count
            nth[name] += 1
            if want.count:
                wants.setdefault(shard, []).append(want)
    return wants


def _take(seen: _DueSnapshot, hands: Demand, shard: int, asked: Sequence[ClaimRequest], claims: Claims) -> None:
    """Fill hands with what a shard gave. A set that gave all that was asked may have more."""
    given = Counter(set_name(alarm.queue, alarm.key) for alarm in claims.alarms)
    for message in claims.messages:  # a message that can't be read does not say where it was
        of = message.header or asked[0]
        given[set_name(of.queue, of.key)] += 1
    if not claims.left:  # a look tells the next due time only of sets where nothing was due, not of these
        seen.falls_due(shard, claims.next_due_ms)
    elif any(given[set_name(want.queue, want.key)] < want.count for want in asked):  # its next due time is not known
        seen.falls_due(shard, claims.now_ms)
    for want in asked:
        name = set_name(want.queue, want.key)
        hands.fill(name, given[name])
        if not claims.left or given[name] < want.count:
            del seen.due[shard, name]
        elif claims.next_due_ms is not None:
            seen.due[shard, name] = max(seen.due[shard, name], claims.next_due_ms)


def _leave_out(seen: _DueSnapshot, shard: int, error: TransientError) -> None:
    """Leave out a shard whose node is away."""
    seen.away = str(error)
    seen.due = {place: at for place, at in seen.due.items() if place[0] != shard}


def _add(given: Claims, claims: Claims) -> None:
    given.messages += claims.messages
    given.alarms += claims.alarms
    given.ghosts += claims.ghosts
    given.now_ms = max(given.now_ms, claims.now_ms)
    given.next_due_ms = earliest(given.next_due_ms, claims.next_due_ms)
