"""Redis as a timer: it holds the alarms of a store's rows."""

from collections.abc import Collection, Sequence
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
)
from django_delayq.brokers.redis import alarms, enqueue, queries
from django_delayq.brokers.redis.access import Access
from django_delayq.brokers.redis.claim import Claimant
from django_delayq.brokers.redis.client import Operation, or_default
from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.rebuild import Rebuild, owner
from django_delayq.support.texts import text as _


class DueScan:
    """Finds what is due, and sleeps until something is: the part that the timer and the queue have in common."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def _claim(self, requests: Sequence[ClaimRequest], lease_ms: int, worker: str) -> Claims:
        found = self._access.run(self._access.planner.claim(requests, Claimant(worker, lease_ms)))
        if found.away:
            self._access.maintenance.ask_all()
        return found

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        return self._access.run(self._access.planner.due_pairs(pairs))

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        return self._access.run(self._access.maintenance.upkeep(lease_ms))

    def wait(self, timeout: float) -> bool:
        return self._access.waiter.sleep(timeout)

    def wake(self) -> None:
        self._access.waiter.wake()

    def counts(self) -> Counts:
        return queries.merge_counts(self._access.run(self._access.shards.everywhere(queries.counts)))


class RedisTimer(DueScan):
    """See `Timer` and `AlarmIndex` in brokers/base.py."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._rebuild = Rebuild(access.shards)

    def schedule(self, alarms: Sequence[Alarm], *, within_s: float = 2.0) -> None:
        check_batch(alarms)
        access = self._access
        access.hear(access.run(access.shards.parted_available(alarms, _pk, enqueue.put_alarms), within_s))

    def take_due(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        return self._claim(requests, lease_ms, worker)

    def drop(self, alarms: Sequence[Alarm], rearm: Sequence[Alarm] = ()) -> None:
        check_batch(alarms)
        check_batch(rearm)
        both = [*((alarm, False) for alarm in alarms), *((alarm, True) for alarm in rearm)]
        access = self._access
        access.hear(access.run(access.shards.parted_available(both, lambda each: each[0].pk, _drop)))

    def begin_rebuild(self, lock_ms: int) -> bool:
        return self._access.run(self._rebuild.begin(lock_ms))

    def end_rebuild(self) -> bool:
        return self._access.run(self._rebuild.end())

    def owner(self, candidate: str = "") -> str:
        return self._access.run(or_default(owner(self._access.shards.first, candidate), ""))

    @property
    def owner_key(self) -> str:
        return _("the field 'store' in Redis: HDEL %(key)s store", key=self._access.shards.first.meta)

    def find_alarms(self, queue: str, key: str, pks: Sequence[str]) -> list[AlarmInfo]:
        check_batch(pks)
        found = self._access.shards.parted(pks, str, lambda keys, own: alarms.find_alarms(keys, queue, key, own))
        by_pk = {alarm.pk: alarm for alarm in chain(*self._access.run(found))}
        return [by_pk[pk] for pk in pks if pk in by_pk]

    def alarms(self, queue: str, key: str, *, after: str = "", count: int = BATCH) -> tuple[list[AlarmInfo], str]:
        return self._access.run(alarms.alarms(self._access.shards.all, queue, key, after, count))


_pk = attrgetter("pk")


def _drop(keys: Keys, alarms: Sequence[tuple[Alarm, bool]]) -> Operation[None]:
    """Drop alarms of one shard, and hold those again that are marked."""
    dropped = [alarm for alarm, is_again in alarms if not is_again]
    return enqueue.drop_alarms(keys, dropped, [alarm for alarm, is_again in alarms if is_again])
