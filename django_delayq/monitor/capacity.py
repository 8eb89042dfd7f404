"""How long live workers take for messages: by what those of each key took, and by how many run at once."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from django_delayq.brokers.base import HandsInfo, WorkerInfo
from django_delayq.core.limits import Limits
from django_delayq.store.figures import Pair

LEAST_MS = 0.2
"""What a message costs its worker however quick the handler is: to be claimed and settled."""

NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Drain:
    """How long some messages take.

    `ms` is None where that is not known: no live worker asks for them (`unserved`), or no message of their keys has run
    of late. `at_least`: that is so of some of them, which are left out, or there are more messages than were counted.
    """

    ms: int | None
    at_least: bool = False
    unserved: bool = False


@dataclass(frozen=True, slots=True)
class Team:
    """So many workers that serve the same queues and keys, with as many hands."""

    size: int
    queues: frozenset[str]
    keys: frozenset[str]
    hands: Sequence[HandsInfo]

    def serves(self, pair: Pair) -> bool:
        """Whether they run messages of this queue and key."""
        queue, key = pair
        return queue in self.queues and key in self.keys

    def at_once(self, keys: Collection[str]) -> int:
        """How many messages of these keys they run at once: no hand is counted twice, and a worker has one at least."""
        of_each = sum(min(hands.most, sum(hands.keys.get(key, 0) for key in keys)) for hands in self.hands)
        return self.size * max(of_each, 1)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The live workers, how long a message of each key ran of late (the mean, all its attempts together), and the
    limits over all workers that keys have here."""

    teams: Sequence[Team]
    ran_ms: Mapping[str, float]
    limits: Mapping[str, Limits] = field(default_factory=dict)

    def times_ms(self, load: Mapping[Pair, float]) -> dict[Pair, float | None]:
        """How long so many messages take of each pair that a live worker serves: as long as the pair, its key, its
        queue or all have to do, whichever most. None: no message of its key has run of late."""
        served = {pair: number for pair, number in load.items() if any(team.serves(pair) for team in self.teams)}
        times_ms = dict.fromkeys(served, 0.0)
        for part in _parts(served):
            part_ms = self._part_ms(served, part)
            for pair in part:
                times_ms[pair] = max(times_ms[pair], part_ms)
        return {pair: ms if pair[1] in self.ran_ms else None for pair, ms in times_ms.items()}

    def drain(self, load: Mapping[Pair, float], times_ms: Mapping[Pair, float | None]) -> Drain:
        """How long all of it takes, of the times that each pair takes."""
        known = [ms for ms in times_ms.values() if ms is not None]
        if load and not known:
            return Drain(None, unserved=not times_ms)
        at_least = len(known) < len(load) or any(self._may_wait(key) for _, key in load)
        return Drain(math.ceil(round(max(known, default=0), 3)), at_least)  # a part of a message is no ms more

    def _may_wait(self, key: str) -> bool:
        """Whether messages of a key wait for one another by what their data say, which is not known here."""
        return self._limits_of({key}).concurrency_key is not None

    def _part_ms(self, load: Mapping[Pair, float], part: Collection[Pair]) -> float:
        """How long these take when there is nothing else to do."""
        workers = hands = 0
        for team in self.teams:
            keys = {key for queue, key in part if team.serves((queue, key))}
            if keys:
                workers, hands = workers + team.size, hands + team.at_once(keys)
        number = sum(load[pair] for pair in part)
        work_ms = sum(load[queue, key] * self.ran_ms.get(key, 0) for queue, key in part)
        limits = self._limits_of({key for _, key in part})
        if limits.max_concurrency is not None and limits.concurrency_key is None:
            hands = min(hands, limits.max_concurrency)
        starts_ms = number * (limits.interval_us or 0) / 1000
        return max(work_ms / hands, starts_ms, number * LEAST_MS / workers)

    def _limits_of(self, keys: Collection[str]) -> Limits:
        """Those of one key; several have none together."""
        if len(keys) != 1:
            return NO_LIMITS
        (key,) = keys
        return self.limits.get(key, NO_LIMITS)


def teams_of(workers: Iterable[WorkerInfo]) -> list[Team]:
    """Workers that are alike, as one: of many, most are."""
    alike: dict[tuple[object, ...], list[WorkerInfo]] = defaultdict(list)
    for worker in workers:
        alike[(*worker.queues, *worker.keys, repr(worker.hands))].append(worker)
    return [
        Team(len(each), frozenset(first.queues), frozenset(first.keys), first.hands)
        for each in alike.values()
        for first in each[:1]
    ]


def _parts(pairs: Iterable[Pair]) -> Collection[Collection[Pair]]:
    """Each pair, the pairs of each key, whose concurrency holds over its queues, those of each queue, and all; once
    each, as most keys are in one queue."""
    parts: dict[tuple[str | None, str | None], list[Pair]] = defaultdict(list)
    for pair in pairs:
        queue, key = pair
        for part in (pair, (None, key), (queue, None), (None, None)):
            parts[part].append(pair)
    return dict.fromkeys(map(tuple, parts.values()))
