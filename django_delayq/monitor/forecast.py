"""Forecast what falls due in the next hours, how long the live workers take for it, and how many are needed soon.

The times are estimated from the mean run time of each key, and from how many messages run at once.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from django_delayq.brokers.base import ExecutorInfo, WorkerInfo
from django_delayq.core.lanes import serves
from django_delayq.core.limits import Limits
from django_delayq.core.requests import Pair
from django_delayq.store.statistics import AHEAD_MS, HOURS, Waiting
from django_delayq.support.timestamps import HOUR_MS

LEAST_MS = 0.2
"""The least time, in ms, that a message costs its worker, however quick the handler is: it is claimed and settled."""

NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Drain:
    """The time that some messages take.

    `ms` is None if the time is not known: the live workers are not known, none of them asks for the messages
    (`unserved`), or no run time of the messages' keys is known. `at_least` says that the messages may take longer: some
    are left out for these reasons, were not counted, or may wait for one another because of their data.
    """

    ms: int | None
    at_least: bool = False
    unserved: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """The number of workers that are needed.

    `workers` is None if that is not known: the live workers are not known, none of them asks for the messages, or no
    run time of the messages' keys is known. `at_least` says that it may be more: some messages are left out for these
    reasons, or were not counted.
    """

    workers: int | None
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Team:
    """A group of `size` workers that serve the same queues and keys, with the same slots each."""

    size: int
    queues: frozenset[str]
    keys: frozenset[str]
    executors: Sequence[ExecutorInfo]

    def serves(self, pair: Pair) -> bool:
        """Return whether the workers run messages of this queue and key."""
        queue, key = pair
        return key in self.keys and serves(self.queues, queue)

    def slots(self, keys: Collection[str]) -> int:
        """Return how many messages of these keys the workers run at once.

        No slot is counted twice, and each worker has at least one.
        """
        of_each = sum(min(one.most, sum(one.keys.get(key, 0) for key in keys)) for one in self.executors)
        return self.size * max(of_each, 1)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The live workers, the mean run time per key in ms, and the limits of keys over all workers.

    A run time is that of all attempts of a message together.
    """

    teams: Sequence[Team]
    ran_ms: Mapping[str, float]
    limits: Mapping[str, Limits] = field(default_factory=dict)

    def times_ms(self, load: Mapping[Pair, float]) -> dict[Pair, float | None]:
        """Return how long the messages of each pair take, for the pairs that a live worker serves.

        It is the longest of the times that the pair, its key, its queue and all messages take. It is None if no run
        time of the key is known.
        """
        served = {pair: number for pair, number in load.items() if any(team.serves(pair) for team in self.teams)}
        times_ms = dict.fromkeys(served, 0.0)
        for part in _parts(served):
            part_ms = self._part_ms(served, part)
            for pair in part:
                times_ms[pair] = max(times_ms[pair], part_ms)
        return {pair: ms if pair[1] in self.ran_ms else None for pair, ms in times_ms.items()}

    def drain(self, load: Mapping[Pair, float], times_ms: Mapping[Pair, float | None]) -> Drain:
        """Return how long the whole load takes, from the times of its pairs."""
        known = [ms for ms in times_ms.values() if ms is not None]
        if load and not known:
            return Drain(None, unserved=not times_ms)
        at_least = len(known) < len(load) or any(self._may_wait(key) for _, key in load)
        return Drain(math.ceil(round(max(known, default=0), 3)), at_least)  # rounded first: a float's error adds no ms

    def workers_for(self, load: Mapping[Pair, float], span_ms: int) -> Need:
        """Return how many workers like the live ones run the load within `span_ms`.

        Messages that a limit of their key keeps from running in that time are left out, because more workers would not
        help.
        """
        known = {
            (queue, key): min(number, self._most_within(key, span_ms))
            for (queue, key), number in load.items()
            if key in self.ran_ms and any(team.serves((queue, key)) for team in self.teams)
        }
        if load and not known:
            return Need(None)
        worker_ms = max((self._worker_ms(known, part) for part in _parts(known)), default=0)
        return Need(math.ceil(round(worker_ms / span_ms, 9)), len(known) < len(load))  # rounded, as above

    def _most_within(self, key: str, span_ms: int) -> float:
        """Return how many messages of a key its limits allow to run within `span_ms`."""
        limits = self.limits.get(key, NO_LIMITS)
        most = math.inf
        if limits.interval_us is not None and limits.most_starts is not None:
            most = limits.most_starts - 1 + span_ms * 1000 / limits.interval_us
        if limits.most_of_all is None:
            return most
        return min(most, limits.most_of_all * span_ms / max(self.ran_ms[key], LEAST_MS))

    def _may_wait(self, key: str) -> bool:
        """Return whether messages of a key may wait for one another because of their data, which is not known here."""
        return self._limits_of({key}).has_keys

    def _part_ms(self, load: Mapping[Pair, float], part: Collection[Pair]) -> float:
        """Return how many milliseconds the messages of `part` take if there is nothing else to do."""
        workers, slots = self._live(part)
        number, work_ms = self._work_ms(load, part)
        limits = self._limits_of({key for _, key in part})
        if limits.max_concurrency is not None and limits.concurrency_key is None:
            slots = min(slots, limits.max_concurrency)
        starts_ms = 0.0
        if limits.interval_us is not None and limits.most_starts is not None:
            starts_ms = max(number - (limits.most_starts - 1), 0) * limits.interval_us / 1000
        return max(work_ms / slots, starts_ms, number * LEAST_MS / workers)

    def _worker_ms(self, load: Mapping[Pair, float], part: Collection[Pair]) -> float:
        """Return how long one worker would take for the messages of `part` if there were nothing else to do."""
        workers, slots = self._live(part)
        number, work_ms = self._work_ms(load, part)
        return max(work_ms * workers / slots, number * LEAST_MS)

    def _live(self, part: Collection[Pair]) -> tuple[int, int]:
        """Return how many live workers serve `part`, and how many of its messages they run at once."""
        workers = slots = 0
        for team in self.teams:
            keys = {key for queue, key in part if team.serves((queue, key))}
            if keys:
                workers, slots = workers + team.size, slots + team.slots(keys)
        return workers, slots

    def _work_ms(self, load: Mapping[Pair, float], part: Collection[Pair]) -> tuple[float, float]:
        """Return how many messages `part` has, and how long they run one after the other."""
        number = sum(load[pair] for pair in part)
        return number, sum(load[queue, key] * self.ran_ms.get(key, 0) for queue, key in part)

    def _limits_of(self, keys: Collection[str]) -> Limits:
        """Return the limits of the only key; none if there are several keys, because they share no limit."""
        if len(keys) != 1:
            return NO_LIMITS
        (key,) = keys
        return self.limits.get(key, NO_LIMITS)


def teams_of(workers: Iterable[WorkerInfo]) -> list[Team]:
    """Group workers that serve the same queues and keys, with the same slots.

    Of many workers most are alike, so there are few teams to reckon with.
    """
    alike: dict[tuple[object, ...], list[WorkerInfo]] = defaultdict(list)
    for worker in workers:
        alike[tuple(worker.queues), tuple(worker.keys), repr(worker.executors)].append(worker)
    return [
        Team(len(each), frozenset(first.queues), frozenset(first.keys), first.executors)
        for each in alike.values()
        for first in each[:1]
    ]


def _parts(pairs: Iterable[Pair]) -> Collection[Collection[Pair]]:
    """Return the groups whose times are estimated: each pair, the pairs of each key and of each queue, and all.

    A key's group is needed because its concurrency holds over all queues. Equal groups are given once, because most
    keys are in one queue.
    """
    parts: dict[tuple[str | None, str | None], list[Pair]] = defaultdict(list)
    for pair in pairs:
        queue, key = pair
        for part in (pair, (None, key), (queue, None), (None, None)):
            parts[part].append(pair)
    return dict.fromkeys(map(tuple, parts.values()))


@dataclass(frozen=True, slots=True)
class Hour:
    """The messages that fall due from `starts_ms` on, until the full hour.

    `complete` says that all of them were counted; if not, `due` is only a part. `drain` is how long they take, together
    with the messages that are left over from before.
    """

    starts_ms: int
    due: int
    complete: bool
    drain: Drain


def forecast(waiting: Waiting, capacity: Capacity | None) -> tuple[Hour, ...]:
    """Return a forecast for the rest of this hour, and for each hour after it, `HOURS` in all.

    The `drain` of the first hour includes the messages that are ready now. `capacity` is None if the workers are not
    known; without it no times are known.
    """
    now_ms, known_until_ms = waiting.counts.now_ms, waiting.known_until_ms
    left, is_whole = _ready(waiting)
    hours = []
    for number in range(HOURS):
        began_ms = waiting.hour_began_ms + number * HOUR_MS
        ends_ms, starts_ms = began_ms + HOUR_MS, max(began_ms, now_ms)
        due = waiting.pending_by_hour.get(began_ms, {})
        load = _sum(left, due)
        times_ms = capacity.times_ms(load) if capacity else {}
        drain = capacity.drain(load, times_ms) if capacity else Drain(None)
        complete = not waiting.more_sets and (known_until_ms is None or known_until_ms >= ends_ms)
        is_whole &= complete
        at_least = drain.ms is not None and (drain.at_least or not is_whole)
        hours.append(Hour(starts_ms, sum(due.values()), complete, replace(drain, at_least=at_least)))
        left = _left(load, times_ms, ends_ms - starts_ms)
    return tuple(hours)


def workers_needed(waiting: Waiting, capacity: Capacity | None) -> Need:
    """Return how many workers are needed to run, within `AHEAD_MS`, what is ready now or falls due in that time.

    `capacity` is None if the workers are not known.
    """
    if capacity is None:
        return Need(None)
    ready, is_whole = _ready(waiting)
    soon = +waiting.due_soon
    if waiting.estimate is not None:
        soon |= waiting.estimate.due_soon
    else:
        is_whole &= not waiting.soon_capped
    need = capacity.workers_for(_sum(ready, soon), AHEAD_MS)
    return replace(need, at_least=need.workers is not None and (need.at_least or not is_whole))


def _ready(waiting: Waiting) -> tuple[Mapping[Pair, float], bool]:
    """Return how many messages of each pair are ready, and whether all of them were counted or estimated."""
    ready = Counter({one.pair: one.ready for one in waiting.counts.waiting if one.ready})
    if waiting.estimate is not None:
        return ready | waiting.estimate.ready, not waiting.more_sets  # the greater of both: a sample may miss some
    return ready, not (waiting.more_sets or waiting.ready_capped)


def _sum(left: Mapping[Pair, float], due: Mapping[Pair, int]) -> Mapping[Pair, float]:
    return {pair: left.get(pair, 0) + due.get(pair, 0) for pair in left.keys() | due.keys()}


def _left(load: Mapping[Pair, float], times_ms: Mapping[Pair, float | None], span_ms: int) -> Mapping[Pair, float]:
    """Return how many messages of each pair are left after `span_ms`: all of them if their time is not known."""
    left = {}
    for pair, number in load.items():
        taken_ms = times_ms.get(pair)
        if taken_ms is None:
            left[pair] = number
        elif taken_ms > span_ms:
            left[pair] = number * (1 - span_ms / taken_ms)
    return left
