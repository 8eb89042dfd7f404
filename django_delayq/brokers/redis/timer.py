"""Use Redis as a timer: it holds the alarms of a store's rows, and the cursor."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from operator import attrgetter

from django_delayq.brokers.base import (
    BATCH,
    Alarm,
    AlarmInfo,
    ClaimRequest,
    Claims,
    Counts,
    MaintenanceResult,
    Pair,
    check_batch,
    earliest,
    pages,
)
from django_delayq.brokers.redis import queries
from django_delayq.brokers.redis.access import Access
from django_delayq.brokers.redis.claim import Claimant
from django_delayq.brokers.redis.client import (
    Argument,
    Call,
    Operation,
    Reply,
    as_ms,
    ask,
    gather_available,
    or_default,
    pairs,
    plain,
    split,
)
from django_delayq.brokers.redis.records import US
from django_delayq.brokers.redis.shards import Keys, load, read, set_name
from django_delayq.support.translatable import text as _

SCHEDULE_CALL = 100
"""The most alarms that one script call schedules. Such a call takes the server a few ms at most."""

CURSOR_DIGITS = 15
"""The most digits of a cursor. Any other text counts as none, in Lua too: someone else wrote it."""

FIND_CALL = 500
"""The most alarms that one script call looks for."""


class DueScan:
    """The methods that `RedisTimer` and `RedisQueue` share: claim, sleep, maintain and count."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.wait, self.wake = access.waiter.sleep, access.waiter.wake

    def _claim(self, requests: Sequence[ClaimRequest], lease_ms: int, worker: str) -> Claims:
        found = self._access.run(self._access.planner.claim(requests, Claimant(worker, lease_ms)))
        if found.away:
            self._access.maintenance.ask_all()
        return found

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        return self._access.run(self._access.planner.due_pairs(pairs))

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        return self._access.run(self._access.maintenance.maintain(lease_ms))

    def counts(self) -> Counts:
        return queries.merge_counts(self._access.run(self._access.shards.everywhere(queries.counts)))


class RedisTimer(DueScan):
    """The `Timer`, `Window` and `AlarmIndex` (brokers/base.py) in Redis."""

    def schedule(self, alarms: Sequence[Alarm], *, within_s: float = 2.0) -> None:
        check_batch(alarms)
        access = self._access
        access.raise_if_away(access.run(access.shards.parted_available(alarms, _pk, _schedule), within_s))

    def take_due(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        return self._claim(requests, lease_ms, worker)

    def drop(self, alarms: Sequence[Alarm], rearm: Sequence[Alarm] = ()) -> None:
        check_batch(alarms)
        check_batch(rearm)
        both = [*((alarm, False) for alarm in alarms), *((alarm, True) for alarm in rearm)]
        access = self._access
        access.raise_if_away(access.run(access.shards.parted_available(both, lambda each: each[0].pk, _drop)))

    def cursor(self) -> int | None:
        return self._run_available(lambda keys: _ask_cursor(read("GET", keys.cursor)))

    def advance_cursor(self, alarms: Sequence[Alarm], from_ms: int | None, to_ms: int) -> int | None:
        check_batch(alarms)
        by_shard: defaultdict[int, list[Alarm]] = defaultdict(list)
        for alarm in alarms:
            by_shard[self._access.shards.of(alarm.pk).shard].append(alarm)
        return self._run_available(lambda keys: _advance_cursor(keys, by_shard[keys.shard], from_ms, to_ms))

    def set_cursor_back(self, to_ms: int) -> None:
        self._run_available(lambda keys: ask(Call(load("set_cursor_back"), (keys.cursor,), (to_ms,))))

    def _run_available(self, operate: Callable[[Keys], Operation[int | None]]) -> int | None:
        """Run an operation on the cursor of each shard that can be reached.

        Return the least of the cursors; None if one of them was lost.
        """
        cursors, _ = split(self._access.run(gather_available([operate(keys) for keys in self._access.shards.all])))
        return None if None in cursors else earliest(*cursors)

    def owner(self, candidate: str = "", *, within_s: float = 2.0) -> str:
        call = Call(load("owner"), (self._access.shards.first.meta,), (candidate,))
        store: bytes = self._access.run(or_default(ask(call), b""), within_s)
        return store.decode(errors="replace")

    @property
    def owner_key(self) -> str:
        return _(
            "the field 'store' in Redis at %(address)s: HDEL %(key)s store",
            address=self._access.location.shown,
            key=self._access.shards.first.meta,
        )

    def find_alarms(self, queue: str, key: str, pks: Sequence[str]) -> list[AlarmInfo]:
        check_batch(pks)
        found = self._access.shards.parted(pks, str, lambda keys, own: _find_alarms(keys, queue, key, own))
        by_pk = {alarm.pk: alarm for alarm in chain(*self._access.run(found))}
        return [by_pk[pk] for pk in pks if pk in by_pk]

    def alarms(self, queue: str, key: str, *, after: str = "", count: int = BATCH) -> tuple[list[AlarmInfo], str]:
        return self._access.run(_page_of_alarms(self._access.shards.all, queue, key, after, count))


_pk = attrgetter("pk")


def _schedule(keys: Keys, alarms: Sequence[Alarm]) -> Operation[None]:
    """Schedule the alarms of one shard."""
    calls = _alarm_calls(keys, "schedule", alarms)
    if calls:
        yield calls


def _ask_cursor(call: Call) -> Operation[int | None]:
    (reply,) = yield [call]
    is_ours = reply is not None and reply.isdigit() and len(reply) <= CURSOR_DIGITS
    return int(reply) if is_ours else None


def _advance_cursor(keys: Keys, alarms: Sequence[Alarm], from_ms: int | None, to_ms: int) -> Operation[int | None]:
    """Schedule the alarms of one shard, and then set its cursor forward. Return the cursor."""
    yield from _schedule(keys, alarms)
    advance = Call(load("advance_cursor"), (keys.cursor,), ("" if from_ms is None else from_ms, to_ms))
    return (yield from _ask_cursor(advance))


def _drop(keys: Keys, marked: Sequence[tuple[Alarm, bool]]) -> Operation[None]:
    """Drop leased alarms of one shard, and schedule alarms. `marked` pairs each alarm with whether to schedule it.

    If an alarm is to be dropped and scheduled, one step moves it from `running` to its wait set.
    """
    claimed = {_name(alarm) for alarm, is_rearmed in marked if not is_rearmed}
    rearmed = [alarm for alarm, is_rearmed in marked if is_rearmed]
    back = [alarm for alarm in rearmed if _name(alarm) in claimed]
    calls = _alarm_calls(keys, "schedule", [alarm for alarm in rearmed if _name(alarm) not in claimed])
    calls += _alarm_calls(keys, "rearm", back, keys.running)
    gone = claimed.difference(map(_name, rearmed))
    if gone:
        calls.append(plain("ZREM", keys.running, *gone))
    if calls:
        yield calls


def _name(alarm: Alarm) -> bytes:
    """Return the member of the sorted set `running` for a leased alarm."""
    return US + US.join((alarm.queue.encode(), alarm.key.encode(), alarm.pk.encode()))


def _alarm_calls(keys: Keys, script: str, alarms: Sequence[Alarm], *names: str) -> list[Call]:
    """Return calls of the script, each for up to `SCHEDULE_CALL` alarms of one wait set."""
    by_set: defaultdict[str, list[Alarm]] = defaultdict(list)
    for alarm in alarms:
        by_set[set_name(alarm.queue, alarm.key)].append(alarm)
    calls = []
    for name, group in by_set.items():
        for page in pages(group, SCHEDULE_CALL):
            arguments: list[Argument] = [keys.channel]
            for alarm in page:
                arguments += (US + alarm.pk.encode(), alarm.wait_ms)
            calls.append(Call(load(script), [keys.sets, keys.timer, keys.wait(name), *names], arguments))
    return calls


def _find_alarms(keys: Keys, queue: str, key: str, pks: Sequence[str]) -> Operation[list[AlarmInfo]]:
    """Return the alarms of one shard for `pks`, as far as they exist."""
    names = (keys.running, keys.wait(set_name(queue, key)))
    asked = pages(pks, FIND_CALL)
    if not asked:
        return []
    replies = yield [Call(load("alarms"), names, [US + pk.encode() for pk in page]) for page in asked]
    return [alarm for page, (now, *times) in zip(asked, replies, strict=True) for alarm in _found(page, times, now)]


def _found(pks: Sequence[str], times: Sequence[Reply], now_ms: int) -> Iterator[AlarmInfo]:
    for pk, due, end in zip(pks, times[::2], times[1::2], strict=True):
        if due is not None or end is not None:
            yield AlarmInfo(pk, _time(due), _time(end), now_ms)


def _page_of_alarms(
    shards: Sequence[Keys], queue: str, key: str, after: str, count: int
) -> Operation[tuple[list[AlarmInfo], str]]:
    """Return a page of alarms, and the `after` of the next page.

    The `after` is the number of a shard and then that of `_page_of_shard`, such as "2 waiting 96"; "" after the last
    page.
    """
    shard, _, of_shard = after.partition(" ")
    nth = int(shard or 0)
    found, following = yield from _page_of_shard(shards[nth], queue, key, of_shard, count)
    if not following:
        nth += 1
    return found, "" if nth == len(shards) else f"{nth} {following}"


def _page_of_shard(keys: Keys, queue: str, key: str, after: str, count: int) -> Operation[tuple[list[AlarmInfo], str]]:
    """Return a page of one shard's alarms for a (queue, key), and the `after` of the next page.

    The `after` is "waiting" or "running" and a cursor of ZSCAN; "" after the last page. Pages of waiting alarms come
    first, then pages of leased ones.
    """
    place, _, cursor = (after or "waiting 0").partition(" ")
    zset = keys.wait(set_name(queue, key)) if place == "waiting" else keys.running
    mark = US if place == "waiting" else US + US.join((queue.encode(), key.encode(), b""))
    ((scanned, page),) = yield [read("ZSCAN", zset, cursor, "COUNT", count)]
    found = [(member[len(mark) :].decode(errors="replace"), as_ms(score)) for member, score in _marked(page, mark)]
    following = int(scanned)
    if place == "waiting":
        return [AlarmInfo(pk, at) for pk, at in found], f"waiting {following}" if following else "running 0"
    return [AlarmInfo(pk, lease_end_ms=at) for pk, at in found], f"running {following}" if following else ""


def _marked(page: list[bytes], mark: bytes) -> list[tuple[bytes, bytes]]:
    return [(member, score) for member, score in pairs(page) if member.startswith(mark)]


def _time(score: Reply) -> int | None:
    return None if score is None else as_ms(score)
