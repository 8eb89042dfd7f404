"""The Redis broker: one sorted set per (queue, key), leases and bodies beside it, every transition a Lua script."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from heapq import nsmallest
from itertools import chain
from operator import attrgetter, itemgetter
from typing import TypeVar

from django_delayq.brokers.base import (
    BATCH,
    Alarm,
    AlarmInfo,
    Audit,
    Capability,
    ClaimRequest,
    Claims,
    Counts,
    Info,
    LeaseId,
    MaintenanceResult,
    NewMessage,
    OnConflict,
    Pair,
    Pause,
    PermitRequest,
    Placed,
    ServerReport,
    Throttled,
    Transition,
    WorkerInfo,
    check_batch,
    refuse_duplicates,
    without_store,
)
from django_delayq.brokers.redis import (
    alarms,
    byid,
    claims,
    limits,
    looks,
    pauses,
    puts,
    scan,
    settles,
)
from django_delayq.brokers.redis.audit import audit, merge_audits
from django_delayq.brokers.redis.claim_planner import ClaimPlanner
from django_delayq.brokers.redis.client import (
    BUDGET,
    Call,
    Client,
    ErrorFactory,
    Operation,
    Reply,
    colocated,
    gather,
    or_default,
    parse_location,
    plain,
)
from django_delayq.brokers.redis.confirm import Confirming
from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.layout import Layout
from django_delayq.brokers.redis.once import put_once
from django_delayq.brokers.redis.poll_ownership import PollOwnership
from django_delayq.brokers.redis.rebuild import Rebuild, owner
from django_delayq.brokers.redis.report import leftover_warnings, merge_reports, on_each_server, report_on
from django_delayq.brokers.redis.shards import Shards
from django_delayq.brokers.redis.slots import Slots
from django_delayq.brokers.redis.upkeep import MaintenanceSchedule
from django_delayq.brokers.redis.waiter import Waiter
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerUnavailable, PartlyUnavailable, SendError
from django_delayq.support.texts import text as _

R = TypeVar("R")

LOOK_BUDGET = 60.0
"""Seconds that a query of everything (audit, errors, an id among the buried) may take, in many round trips."""


class RedisBroker:
    """See `django_delayq.brokers.base.Broker`; docs/internals describes structures and transitions."""

    capabilities = frozenset(Capability) - {Capability.TAGS}

    def __init__(self, alias: Alias) -> None:
        self._options = alias.options
        self._has_store = alias.store is not None
        self._shards = Shards(alias.options.prefix, alias.options.shards)
        self._layout = Layout(self._shards)
        self._confirming = Confirming(alias.options.confirm, self._shards)
        self._slots = Slots()
        self._rebuild = Rebuild(self._shards)
        self._unconfirmed = settles.Unconfirmed()
        self._pauses: list[Pause] = []  # as last read
        self._location = parse_location(alias.location)
        self._links = Client(self._location)
        self._waiter = Waiter(self._links, [keys.channel for keys in self._shards.all])
        self._owners = PollOwnership(self._shards.all, self._links.node_of, self._waiter.hears)
        self._search = ClaimPlanner(self._shards, self._slots, self._waiter, self._owners)
        self._maintenance = MaintenanceSchedule(alias, self._shards.all, self._search, self._owners, self._links)

    @classmethod
    def check(cls, alias: Alias) -> None:
        parse_location(alias.location)

    @classmethod
    def places(cls, alias: Alias) -> frozenset[str]:
        return frozenset(f"{server} {alias.options.prefix}" for server in parse_location(alias.location).servers)

    def open(self) -> None:
        self._links.run(gather([self._layout.agree(), self._confirming.ask()]))

    def close(self) -> None:
        self._waiter.close()
        self._links.close()

    def _run(self, operation: Operation[R], budget: float = BUDGET, lost: ErrorFactory = BrokerUnavailable) -> R:
        try:
            return self._links.run(self._layout.agreed(operation), budget, lost)
        except BrokerUnavailable:
            self._maintenance.ask_all()
            raise

    def _hear(self, away: str) -> None:
        """Raise why some shards were not reached, if there are such. Then the next upkeep asks all shards."""
        if away:
            self._maintenance.ask_all()
            raise PartlyUnavailable(away)

    async def _arun(self, operation: Operation[R], budget: float = BUDGET, lost: ErrorFactory = BrokerUnavailable) -> R:
        return await self._links.arun(self._layout.agreed(operation), budget, lost)

    # Messages in

    def put(self, puts_: Sequence[NewMessage], on_conflict: OnConflict = "keep") -> list[Placed]:
        return self.begin_put(puts_, on_conflict)()

    def begin_put(self, puts_: Sequence[NewMessage], on_conflict: OnConflict = "keep") -> Callable[[], list[Placed]]:
        check_batch(puts_)
        operation = self._layout.agreed(self._put(puts_, on_conflict))
        end = self._links.begin(operation, on_unavailable=partial(_unknown, puts_))
        return lambda: refuse_duplicates(end(), on_conflict)

    def begin_put_once(self, puts_: Sequence[NewMessage], job: str, keep_ms: int) -> Callable[[], int]:
        """Begin to put the messages that the job has not sent before. The returned function returns how many these are.

        A message that the job has sent is not put again, whatever became of it. What it has sent is in its ledger,
        which is kept for `keep_ms` after its last put.
        """
        check_batch(puts_)
        put = self._shards.by_id(puts_, _id, lambda keys, own: put_once(keys, self._slots, own, job, keep_ms))
        operation = self._layout.agreed(self._confirming.confirmed(put))
        end = self._links.begin(operation, on_unavailable=partial(_unknown, puts_))
        return lambda: sum(end())

    async def aput(self, puts_: Sequence[NewMessage], on_conflict: OnConflict = "keep") -> list[Placed]:
        check_batch(puts_)
        placed = await self._arun(self._put(puts_, on_conflict), lost=partial(_unknown, puts_))
        return refuse_duplicates(placed, on_conflict)

    def _put(self, puts_: Sequence[NewMessage], on_conflict: OnConflict) -> Operation[list[Placed]]:
        put = self._shards.by_id(puts_, _id, lambda keys, own: puts.put(keys, self._slots, own, on_conflict))
        return self._confirming.confirmed(put)

    def put_alarms(self, alarms: Sequence[Alarm], *, within_s: float = 2.0) -> None:
        check_batch(alarms)
        self._hear(self._run(self._shards.parted_available(alarms, _pk, puts.put_alarms), within_s))

    # Messages out

    def claim(self, wants: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        found = self._run(self._search.claim(wants, claims.Claimant(worker, lease_ms)))
        if found.away:
            self._maintenance.ask_all()
        return found

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        return self._run(self._search.due_pairs(pairs))

    def claim_suspect(self, wants: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        return self._run(self._search.claim_suspect(wants, claims.Claimant(worker, lease_ms)))

    def settle(self, transitions: Sequence[Transition]) -> Sequence[bool | None]:
        check_batch(transitions)
        # Not `agreed`: a process whose layout is refused may still end what it runs, as its token proves.
        held = self._links.run(self._shards.by_id_available(transitions, _id, settles.settle))
        return self._unconfirmed.heard(transitions, held)

    def drop_alarms(self, alarms: Sequence[Alarm], again: Sequence[Alarm] = ()) -> None:
        check_batch(alarms)
        check_batch(again)
        both = [*((alarm, False) for alarm in alarms), *((alarm, True) for alarm in again)]
        self._hear(self._run(self._shards.parted_available(both, lambda each: each[0].pk, _drop_alarms)))

    def renew(self, leases: Sequence[LeaseId], lease_ms: int) -> Sequence[bool | None]:
        check_batch(leases)
        renewed = self._shards.by_id_available(
            leases, itemgetter(0), lambda keys, own: settles.renew(keys, own, lease_ms)
        )
        return self._links.run(renewed)

    def acquire(self, asks: Sequence[PermitRequest], *, lease_ms: int) -> list[Throttled | None]:
        check_batch(asks)
        if not asks:
            return []
        return self._run(limits.acquire(self._options.prefix, asks, lease_ms, self._links.hear, self._links.unbroken_s))

    def give_back(self, asks: Sequence[PermitRequest]) -> None:
        check_batch(asks)
        if asks:
            self._run(limits.give_back(self._options.prefix, asks))

    def upkeep(self, *, lease_ms: int) -> MaintenanceResult:
        return self._run(self._maintenance.upkeep(lease_ms))

    def begin_rebuild(self, lock_ms: int) -> bool:
        return self._run(self._rebuild.begin(lock_ms))

    def end_rebuild(self) -> bool:
        return self._run(self._rebuild.end())

    def owner(self, candidate: str = "") -> str:
        return self._run(or_default(owner(self._shards.first, candidate), ""))

    @property
    def owner_key(self) -> str:
        return _("the field 'store' in Redis: HDEL %(key)s store", key=self._shards.first.meta)

    def wait(self, timeout: float) -> bool:
        return self._waiter.sleep(timeout)

    def wake(self) -> None:
        self._waiter.wake()

    # Operations by id

    def together(self, work: Callable[[], R]) -> R:
        return work()

    def cancel(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return self._run(self._cancel(ids), lost=_may_be_done)

    async def acancel(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return await self._arun(self._cancel(ids), lost=_may_be_done)

    def _cancel(self, ids: Sequence[str]) -> Operation[list[bool]]:
        return self._shards.by_id(ids, str, lambda keys, own: byid.cancel(keys, self._slots, own))

    def reschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        check_batch(ids)
        return self._run(self._reschedule(ids, puts.due_text(delay_ms, at_ms)), lost=_may_be_done)

    async def areschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        check_batch(ids)
        return await self._arun(self._reschedule(ids, puts.due_text(delay_ms, at_ms)), lost=_may_be_done)

    def _reschedule(self, ids: Sequence[str], due: str) -> Operation[list[bool]]:
        return self._shards.by_id(ids, str, lambda keys, own: byid.reschedule(keys, self._slots, own, due))

    def rescue(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return self._run(self._shards.by_id(ids, str, byid.rescue), LOOK_BUDGET, _may_be_done)

    def purge(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        operation = self._shards.by_id(ids, str, lambda keys, own: byid.purge(keys, self._slots, own))
        return self._run(operation, lost=_may_be_done)

    def purge_errors(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return self._run(self._shards.by_id(ids, str, byid.purge_errors), LOOK_BUDGET, _may_be_done)

    # Pauses

    def pause(self, pause: Pause) -> None:
        self._run(pauses.pause(self._shards.first, pause))

    def resume(self, queue: str | None, key: str | None) -> bool:
        return self._run(pauses.resume(self._shards.first, queue, key))

    def pauses(self) -> list[Pause]:
        self._pauses = self._run(or_default(pauses.pauses(self._shards.first), self._pauses))
        return self._pauses

    @property
    def pauses_heard(self) -> int:
        return self._waiter.pauses_heard

    # Queries

    def get(self, id: str) -> Info | None:
        return self._run(looks.get(self._shards.of(id), id), LOOK_BUDGET)

    async def aget(self, id: str) -> Info | None:
        return await self._arun(looks.get(self._shards.of(id), id), LOOK_BUDGET)

    def tagged(self, tag: str) -> list[str]:
        raise without_store("Finding messages by tag", "give ids")

    def peek(self, queue: str, count: int, key: str | None = None) -> list[Info]:
        peeked = self._shards.everywhere(lambda keys: looks.peek(keys, queue, count, key))
        return nsmallest(count, chain(*self._run(peeked, LOOK_BUDGET)), key=lambda info: (info.due_ms, info.id))

    def wait_sets(self) -> list[list[str]]:
        """Return the names ("queue:key") under which something waits, of each shard."""
        return self._run(self._shards.everywhere(scan.names))

    def scan(self, shard: int, name: str, place: scan.Place, last_ms: int, count: int) -> scan.Page:
        """Return a page of what waits under a name in a shard, for a caller that reads it all. See scan.py."""
        return self._run(scan.page(self._shards.all[shard], name, place, last_ms, count), LOOK_BUDGET)

    def errors(self, count: int, offset: int = 0) -> list[Info]:
        newest = self._shards.everywhere(lambda keys: looks.errors(keys, offset + count, 0))
        found = chain(*self._run(newest, LOOK_BUDGET))
        return sorted(found, key=lambda info: info.buried_ms or 0, reverse=True)[offset : offset + count]

    def counts(self) -> Counts:
        return looks.merge_counts(self._run(self._shards.everywhere(looks.counts)))

    def audit(self) -> Audit:
        return merge_audits(self._run(self._shards.everywhere(audit), LOOK_BUDGET))

    def find_alarms(self, queue: str, key: str, pks: Sequence[str]) -> list[AlarmInfo]:
        check_batch(pks)
        found = self._shards.parted(pks, str, lambda keys, own: alarms.find_alarms(keys, queue, key, own))
        by_pk = {alarm.pk: alarm for alarm in chain(*self._run(found))}
        return [by_pk[pk] for pk in pks if pk in by_pk]

    def alarms(self, queue: str, key: str, *, after: str = "", count: int = BATCH) -> tuple[list[AlarmInfo], str]:
        return self._run(alarms.alarms(self._shards.all, queue, key, after, count))

    def announce(self, worker: WorkerInfo) -> list[Pause]:
        said: list[Operation[list[Pause] | None]] = [self._owners.announce(worker), self._layout.agree()]
        nothing: list[list[Pause] | None] = [None, None]
        told, _agreed = self._links.run(or_default(gather(said), nothing))
        if told is None:  # the next heartbeat repeats it: a node that is away must not keep a worker from the others
            self._maintenance.ask_all()
        else:
            self._pauses = told
        return self._pauses

    def retire(self, worker: str) -> None:
        self._run(_one(plain("HDEL", self._shards.first.meta, f"worker:{worker}")))

    def workers(self) -> list[WorkerInfo]:
        return self._run(looks.workers(self._shards.first))

    def report(self) -> ServerReport:
        keys = self._run(on_each_server(self._shards))
        reports = [report_on(partial(self._run_beside, key), self._location.shown) for key in keys]
        report = merge_reports(reports)
        report.warnings.extend(self._location.warnings)
        if self._has_store:
            report.warnings.extend(self._run(leftover_warnings(self._shards)))
        return report

    def _run_beside(self, key: str, *command: str) -> Reply:
        return self._run(_one(colocated(key, *command)))


_id, _pk = attrgetter("id"), attrgetter("pk")


def _drop_alarms(keys: Keys, alarms: Sequence[tuple[Alarm, bool]]) -> Operation[None]:
    """Drop alarms of one shard, and hold those again that are marked."""
    dropped = [alarm for alarm, is_again in alarms if not is_again]
    return puts.drop_alarms(keys, dropped, [alarm for alarm, is_again in alarms if is_again])


def _unknown(puts_: Sequence[NewMessage], reason: str) -> SendError:
    """Return the error of a send that ran out of time: what was sent before may have arrived."""
    ids = tuple(put.id for put in puts_)
    what = f"Message {ids[0]!r}" if len(ids) == 1 else f"These {len(ids)} messages"
    return SendError(f"{reason.rstrip('.')}. {what} may have been taken; send again with the same id.", unknown=ids)


def _may_be_done(reason: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"{reason.rstrip('.')}. What was asked may have been done; asking again is safe.")


def _one(call: Call) -> Operation[Reply]:
    (reply,) = yield [call]
    return reply
